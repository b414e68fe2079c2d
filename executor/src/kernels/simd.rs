//! Vector arithmetic whose bits do not depend on the vector width.
//!
//! Sums run over [`LANES`] accumulators which are reduced as a fixed tree, and nothing here is
//! contracted to a fused multiply-add. So a kernel gives the same bits compiled for 4, 8 or 16
//! floats per register, and an element the same bits in a full vector or in a tail.

/// Accumulators of a sum, whatever the machine's registers hold.
pub(crate) const LANES: usize = 16;

/// Compiles a function for the baseline, for AVX2 and for AVX-512, and picks at run time. The bits of
/// all are equal (see the module's text), so the choice is one of speed only.
macro_rules! versioned {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn generic($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                #[allow(clippy::too_many_arguments)]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    generic($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                #[allow(clippy::too_many_arguments)]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    generic($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the processor has the features that the function is compiled for, of
                    // which avx512bw implies avx512f.
                    return unsafe { avx512($($arg),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the one feature that the function is compiled for.
                    return unsafe { avx2($($arg),*) };
                }
            }
            generic($($arg),*)
        }
    };
}
pub(crate) use versioned;

/// The sum of the lanes, halves added to halves.
#[inline(always)]
pub(crate) fn reduce(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of `x`.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(tail) {
        *sum += value;
    }
    reduce(sums)
}

/// The sum of the squares of `x`.
#[inline(always)]
pub(crate) fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value * value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(tail) {
        *sum += value * value;
    }
    reduce(sums)
}

/// Below it [`exp`] is zero; above [`EXP_MAX`] it is `exp(EXP_MAX)`, about 2.4e38.
pub(crate) const EXP_MIN: f32 = -87.336_54;
pub(crate) const EXP_MAX: f32 = 88.376_26;

/// The numbers of [`exp`].
pub(crate) mod exponential {
    /// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
    pub(crate) const ROUND: f32 = 12_582_912.0;
    pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
    pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Of the polynomial, from the highest power down to the square.
    pub(crate) const COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
}

/// e to the power of `x`, within 2 units in the last place on `[EXP_MIN, EXP_MAX]`; NaN for NaN.
///
/// Branch-free, so a loop over it vectorises. Range reduction `x = n ln 2 + r` with ln 2 split in
/// two (Cody and Waite), then the polynomial of Cephes' `expf` for `exp(r)` on `|r| <= ln 2 / 2`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    use exponential::{COEFFICIENTS, LN2_HIGH, LN2_LOW, ROUND};

    let clamped = if x > EXP_MAX { EXP_MAX } else { x };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        p = p * r + coefficient;
    }
    let fraction = (p * (r * r) + r) + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let power = f32::from_bits(exponent.wrapping_add(127).wrapping_shl(23));
    let result = fraction * power;
    if x < EXP_MIN { 0.0 } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut x = EXP_MIN;
        while x < EXP_MAX {
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error <= 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {error:e}");
            x += 0.001_37;
        }
    }

    #[test]
    fn exp_has_the_right_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-88.0), 0.0);
        assert!(exp(f32::INFINITY) > 2.0e38 && exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    versioned! {
        fn softened_norm(x: &[f32], out: &mut [f32]) -> f32 {
            let norm = sum_of_squares(x);
            for (out, x) in out.iter_mut().zip(x) {
                *out = exp(*x) * norm + *x;
            }
            norm
        }
    }

    #[test]
    fn all_versions_of_a_function_give_the_same_bits() {
        let x: Vec<f32> = (0..1000).map(|i| ((i * i) as f32).sin() * 50.0).collect();
        let mut out = vec![0.0; x.len()];
        let norm = softened_norm(&x, &mut out);
        let baseline = sum_of_squares(&x);
        assert_eq!(norm.to_bits(), baseline.to_bits());
        for (x, out) in x.iter().zip(out) {
            assert_eq!(out.to_bits(), (exp(*x) * baseline + *x).to_bits());
        }
    }

    #[test]
    fn a_sum_has_the_bits_of_its_lanes_wherever_the_tail_begins() {
        let x: Vec<f32> = (0..53).map(|i| (i as f32).sin()).collect();
        let mut lanes = [0.0f32; LANES];
        for (i, value) in x.iter().enumerate() {
            lanes[i % LANES] += value * value;
        }
        assert_eq!(sum_of_squares(&x).to_bits(), reduce(lanes).to_bits());
    }
}
