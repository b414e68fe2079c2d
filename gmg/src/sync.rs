//! Shared ownership and locks: the standard library's, or those of shuttle, under which the tests of
//! publication try interleavings (`RUSTFLAGS="--cfg shuttle" cargo test --test publication_interleaved`).

#[cfg(shuttle)]
pub(crate) use shuttle::sync::Mutex;
#[cfg(not(shuttle))]
pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::PoisonError;
