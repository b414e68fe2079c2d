//! What no policy can exceed: the other end of the scale that a policy is measured on.
//!
//! | module | what it holds |
//! |---|---|
//! | [`needs`] | what requests need at least, whoever serves them |
//! | [`cases`] | cases of the oracle from scenarios, with the durations of a cost model |
//! | [`oracle`] | the best schedule of a few requests that are known beforehand, found by search |
//! | [`trial`] | a policy on a case of the oracle |
//! | `linear` | a bound on the token throughput of any run, by a linear program (feature `bound`) |
//!
//! [`efficiency`] says how much of the way from static containers to the bound a policy goes.

pub mod cases;
#[cfg(feature = "bound")]
pub mod linear;
pub mod needs;
pub mod oracle;
pub mod trial;
mod work;

pub use work::NoRoofline;

/// The share of what could be gained over static containers that is gained: `(T - T_static) / (T_bound -
/// T_static)`, all three in tokens per second. [`None`] if the bound leaves nothing to gain.
pub fn efficiency(reached: f64, of_static: f64, bound: f64) -> Option<f64> {
    let room = bound - of_static;
    (room > 0.0).then(|| (reached - of_static) / room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efficiency_goes_from_static_containers_to_the_bound() {
        assert_eq!(efficiency(238.0, 86.0, 276.0), Some(152.0 / 190.0));
        assert_eq!(efficiency(80.0, 100.0, 200.0), Some(-0.2));
        assert_eq!(efficiency(100.0, 100.0, 100.0), None);
    }
}
