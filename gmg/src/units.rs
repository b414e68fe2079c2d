//! Quantities with their unit in the type.
//!
//! All quantities are whole numbers, so sums, differences and comparisons are exact and equal on
//! every machine. Arithmetic saturates: a quantity never wraps, and [`Nanos::MAX`] reads as
//! "never".

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0);
            /// The largest value that can be expressed.
            pub const MAX: Self = Self(u64::MAX);

            /// The bare number, in the unit of the type.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// This value times `factor`, saturating.
            pub const fn times(self, factor: u64) -> Self {
                Self(self.0.saturating_mul(factor))
            }

            /// This value scaled by `numerator / denominator`, rounded to nearest, saturating.
            /// A zero denominator gives [`MAX`](Self::MAX).
            pub const fn scale(self, numerator: u64, denominator: u64) -> Self {
                if denominator == 0 {
                    return Self::MAX;
                }
                let scaled = (self.0 as u128 * numerator as u128 + denominator as u128 / 2) / denominator as u128;
                if scaled > u64::MAX as u128 { Self::MAX } else { Self(scaled as u64) }
            }

            /// True for zero.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $name {
            type Output = Self;
            /// Saturates at zero.
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::ZERO, Add::add)
            }
        }
    };
}

quantity! {
    /// A point in time or a span of it, in nanoseconds.
    ///
    /// Points are counted from the start of the run (the `Clock` of the host decides what that is).
    Nanos
}

quantity! {
    /// An amount of memory or of data moved, in bytes.
    Bytes
}

quantity! {
    /// An amount of arithmetic, in floating-point operations (a multiply-add counts as two).
    Flops
}

quantity! {
    /// Data moved per second, in bytes per second.
    Bandwidth
}

quantity! {
    /// Arithmetic per second, in floating-point operations per second.
    FlopRate
}

impl Nanos {
    /// `micros` microseconds.
    pub const fn us(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// `millis` milliseconds.
    pub const fn ms(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// `secs` seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Seconds given as a float, rounded to the nearest nanosecond; negative and NaN give zero.
    pub fn from_secs_f64(secs: f64) -> Self {
        Self((secs * 1e9 + 0.5) as u64)
    }

    /// The value in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The value in milliseconds.
    pub fn as_ms_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl From<std::time::Duration> for Nanos {
    fn from(duration: std::time::Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for std::time::Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

impl Bytes {
    /// `n` KiB (2^10 bytes).
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` MiB (2^20 bytes).
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` GiB (2^30 bytes).
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// `n` GB (10^9 bytes), the unit of data sheets.
    pub const fn gb(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// The value in GiB.
    pub fn as_gib_f64(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }

    /// The smallest multiple of `alignment` that is not below this value. A zero alignment leaves
    /// the value as it is.
    pub const fn align_up(self, alignment: u64) -> Self {
        if alignment == 0 {
            return self;
        }
        match self.0 % alignment {
            0 => self,
            rest => Self(self.0.saturating_add(alignment - rest)),
        }
    }
}

impl Bandwidth {
    /// `n` GB/s (10^9 bytes per second).
    pub const fn gb_per_s(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// The time to move `bytes`, rounded up; [`Nanos::MAX`] at zero bandwidth.
    pub const fn time_for(self, bytes: Bytes) -> Nanos {
        per_second(bytes.0, self.0)
    }
}

impl FlopRate {
    /// `n` GFLOP/s (10^9 operations per second).
    pub const fn gflops(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// `n` TFLOP/s (10^12 operations per second).
    pub const fn tflops(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000_000))
    }

    /// The time for `flops`, rounded up; [`Nanos::MAX`] at zero rate.
    pub const fn time_for(self, flops: Flops) -> Nanos {
        per_second(flops.0, self.0)
    }
}

const fn per_second(amount: u64, rate: u64) -> Nanos {
    if amount == 0 {
        return Nanos::ZERO;
    }
    if rate == 0 {
        return Nanos::MAX;
    }
    let nanos = (amount as u128 * 1_000_000_000).div_ceil(rate as u128);
    if nanos > u64::MAX as u128 { Nanos::MAX } else { Nanos(nanos as u64) }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            u64::MAX => return f.pad("never"),
            n if n < 1_000 => return f.pad(&format!("{n} ns")),
            n if n < 1_000_000 => (n as f64 / 1e3, "us"),
            n if n < 1_000_000_000 => (n as f64 / 1e6, "ms"),
            n => (n as f64 / 1e9, "s"),
        };
        f.pad(&format!("{value:.3} {unit}"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            n if n < 1 << 10 => return f.pad(&format!("{n} B")),
            n if n < 1 << 20 => (n as f64 / (1u64 << 10) as f64, "KiB"),
            n if n < 1 << 30 => (n as f64 / (1u64 << 20) as f64, "MiB"),
            n => (n as f64 / (1u64 << 30) as f64, "GiB"),
        };
        f.pad(&format!("{value:.1} {unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_rounds_up_and_never_wraps() {
        assert_eq!(Bandwidth::gb_per_s(1).time_for(Bytes(1)), Nanos(1));
        assert_eq!(Bandwidth(3).time_for(Bytes(1)), Nanos(333_333_334));
        assert_eq!(Bandwidth::ZERO.time_for(Bytes(1)), Nanos::MAX);
        assert_eq!(Bandwidth::ZERO.time_for(Bytes::ZERO), Nanos::ZERO);
        assert_eq!(FlopRate(1).time_for(Flops::MAX), Nanos::MAX);
        assert_eq!(Nanos::MAX + Nanos(1), Nanos::MAX);
        assert_eq!(Nanos(1) - Nanos(2), Nanos::ZERO);
    }

    #[test]
    fn scaling_rounds_to_nearest() {
        assert_eq!(Nanos(10).scale(1, 4), Nanos(3));
        assert_eq!(Nanos(10).scale(1, 3), Nanos(3));
        assert_eq!(Nanos(u64::MAX).scale(2, 1), Nanos::MAX);
        assert_eq!(Bytes(1025).align_up(512), Bytes(1536));
        assert_eq!(Bytes(1024).align_up(512), Bytes(1024));
    }

    #[test]
    fn quantities_read_in_the_unit_of_their_size() {
        assert_eq!(Nanos::ms(12).to_string(), "12.000 ms");
        assert_eq!(Nanos::MAX.to_string(), "never");
        assert_eq!(Bytes::gib(2).to_string(), "2.0 GiB");
        assert_eq!(Nanos::from_secs_f64(-1.0), Nanos::ZERO);
        assert_eq!(Nanos::from_secs_f64(f64::NAN), Nanos::ZERO);
    }
}
