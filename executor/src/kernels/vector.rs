//! Sixteen floats as one value, in whatever registers the machine has for them.
//!
//! For kernels of which compilers make no vector code by themselves. What a [`Kernel`] does is compiled once for
//! each instruction set, with a token that says that the processor has it; operations are those of single
//! numbers, never contracted, so the bits do not depend on the set.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::simd::{EXP_MAX, EXP_MIN, LANES};

/// An instruction set that the processor has.
pub(super) trait Vector: Copy {
    /// [`LANES`] floats.
    type Floats: Copy;

    fn splat(self, value: f32) -> Self::Floats;
    fn load(self, from: &[f32; LANES]) -> Self::Floats;
    fn store(self, floats: Self::Floats, to: &mut [f32; LANES]);
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn subtract(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `if a > b { a } else { b }`
    fn greater(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `if a < b { a } else { b }`
    fn lesser(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `if a < b { 0.0 } else { value }`
    fn zero_if_less(self, a: Self::Floats, b: Self::Floats, value: Self::Floats) -> Self::Floats;
    /// `f32::from_bits((number.to_bits() + addend) << 23)`, wrapping.
    fn shift_to_exponent(self, number: Self::Floats, addend: u32) -> Self::Floats;

    /// As [`simd::exp`](super::simd::exp), bit for bit.
    #[inline(always)]
    fn exp(self, x: Self::Floats) -> Self::Floats {
        use super::simd::exponential::{COEFFICIENTS, LN2_HIGH, LN2_LOW, ROUND};

        let clamped = self.lesser(self.splat(EXP_MAX), x);
        let round = self.splat(ROUND);
        let shifted = self.add(self.multiply(clamped, self.splat(std::f32::consts::LOG2_E)), round);
        let n = self.subtract(shifted, round);
        let high = self.subtract(clamped, self.multiply(n, self.splat(LN2_HIGH)));
        let r = self.subtract(high, self.multiply(n, self.splat(LN2_LOW)));
        let mut p = self.splat(COEFFICIENTS[0]);
        for coefficient in &COEFFICIENTS[1..] {
            p = self.add(self.multiply(p, r), self.splat(*coefficient));
        }
        let fraction = self.add(self.add(self.multiply(p, self.multiply(r, r)), r), self.splat(1.0));
        let power = self.shift_to_exponent(shifted, 127_u32.wrapping_sub(ROUND.to_bits()));
        self.zero_if_less(x, self.splat(EXP_MIN), self.multiply(fraction, power))
    }
}

/// Something that is worth an instruction set of its own.
pub(super) trait Kernel {
    /// Is to be inlined, and all that it calls with `vector`.
    fn run<V: Vector>(self, vector: V);
}

/// Runs a kernel with the widest instructions that the processor has.
pub(super) fn run(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    let Some(kernel) = x86::run(kernel) else { return };
    kernel.run(Plain);
}

/// No instructions but those of single numbers, of which the compiler makes what the target has.
#[derive(Clone, Copy, Debug)]
struct Plain;

#[inline(always)]
fn by_lane(a: [f32; LANES], b: [f32; LANES], operation: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|lane| operation(a[lane], b[lane]))
}

impl Vector for Plain {
    type Floats = [f32; LANES];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Floats {
        *from
    }

    #[inline(always)]
    fn store(self, floats: Self::Floats, to: &mut [f32; LANES]) {
        *to = floats;
    }

    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        by_lane(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn subtract(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        by_lane(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        by_lane(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn greater(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        by_lane(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn lesser(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        by_lane(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn zero_if_less(self, a: Self::Floats, b: Self::Floats, value: Self::Floats) -> Self::Floats {
        std::array::from_fn(|lane| if a[lane] < b[lane] { 0.0 } else { value[lane] })
    }

    #[inline(always)]
    fn shift_to_exponent(self, number: Self::Floats, addend: u32) -> Self::Floats {
        number.map(|number| f32::from_bits(number.to_bits().wrapping_add(addend).wrapping_shl(23)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::simd::exp;
    use super::*;

    /// One of each operation, and a number that all of them go into.
    struct All<'a> {
        a: &'a [f32; LANES],
        b: &'a [f32; LANES],
        out: &'a mut [[f32; LANES]; 8],
    }

    impl Kernel for All<'_> {
        #[inline(always)]
        fn run<V: Vector>(self, vector: V) {
            let (a, b) = (vector.load(self.a), vector.load(self.b));
            let results = [
                vector.add(a, b),
                vector.subtract(a, b),
                vector.multiply(a, b),
                vector.greater(a, b),
                vector.lesser(a, b),
                vector.zero_if_less(a, b, vector.splat(self.a[3])),
                vector.shift_to_exponent(a, self.b[0].to_bits()),
                vector.exp(a),
            ];
            for (result, out) in results.into_iter().zip(self.out) {
                vector.store(result, out);
            }
        }
    }

    fn bits(of: &[[f32; LANES]; 8]) -> Vec<u32> {
        // Which NaN comes out is nobody's promise.
        of.iter().flatten().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
    }

    proptest! {
        #[test]
        fn every_instruction_set_does_what_single_numbers_do(
            a in prop::array::uniform16(prop_oneof![any::<f32>(), -100.0f32..100.0]),
            b in prop::array::uniform16(prop_oneof![any::<f32>(), -100.0f32..100.0]),
        ) {
            let mut single = [[0.0; LANES]; 8];
            for lane in 0..LANES {
                let (x, y) = (a[lane], b[lane]);
                let shifted = f32::from_bits(x.to_bits().wrapping_add(b[0].to_bits()).wrapping_shl(23));
                let results = [
                    x + y, x - y, x * y, if x > y { x } else { y }, if x < y { x } else { y },
                    if x < y { 0.0 } else { a[3] }, shifted, exp(x),
                ];
                for (single, result) in single.iter_mut().zip(results) {
                    single[lane] = result;
                }
            }
            let mut plain = [[0.0; LANES]; 8];
            All { a: &a, b: &b, out: &mut plain }.run(Plain);
            prop_assert_eq!(bits(&plain), bits(&single));
            let mut widest = [[0.0; LANES]; 8];
            run(All { a: &a, b: &b, out: &mut widest });
            prop_assert_eq!(bits(&widest), bits(&single));
            #[cfg(target_arch = "x86_64")]
            {
                let mut middle = [[0.0; LANES]; 8];
                if x86::run_with_avx2(All { a: &a, b: &b, out: &mut middle }).is_none() {
                    prop_assert_eq!(bits(&middle), bits(&single));
                }
            }
        }
    }
}
