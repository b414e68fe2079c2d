//! replay
fn main() {}
