//! Registers of 256 and 512 bits.

use std::arch::x86_64::{
    __m256, __m512, _CMP_LT_OQ, _mm256_add_epi32, _mm256_add_ps, _mm256_andnot_ps, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps, _mm512_add_epi32,
    _mm512_add_ps, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_loadu_ps, _mm512_mask_mov_ps,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::{Kernel, LANES, Vector};

/// Runs a kernel with the widest registers, or gives it back.
pub(super) fn run<K: Kernel>(kernel: K) -> Option<K> {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the feature that the function is compiled for.
        unsafe { with_avx512(kernel) };
        return None;
    }
    run_with_avx2(kernel)
}

/// Runs a kernel with registers of 256 bits, or gives it back.
pub(super) fn run_with_avx2<K: Kernel>(kernel: K) -> Option<K> {
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that the function is compiled for.
        unsafe { with_avx2(kernel) };
        return None;
    }
    Some(kernel)
}

#[target_feature(enable = "avx512f")]
fn with_avx512(kernel: impl Kernel) {
    kernel.run(Avx512(()));
}

#[target_feature(enable = "avx2")]
fn with_avx2(kernel: impl Kernel) {
    kernel.run(Avx2(()));
}

/// The processor has AVX-512F: made in [`with_avx512`] only.
#[derive(Clone, Copy, Debug)]
struct Avx512(());

/// The processor has AVX2: made in [`with_avx2`] only.
#[derive(Clone, Copy, Debug)]
struct Avx2(());

impl Vector for Avx512 {
    type Floats = __m512;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: the token says that the processor has the instruction.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: as in `splat`, and the array has the floats of a register.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, floats: __m512, to: &mut [f32; LANES]) {
        // SAFETY: as in `load`.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), floats) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `splat`.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn subtract(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `splat`.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `splat`.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn greater(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `splat`. The instruction gives its second operand unless the first is greater.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn lesser(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `splat`. The instruction gives its second operand unless the first is less.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn zero_if_less(self, a: __m512, b: __m512, value: __m512) -> __m512 {
        // SAFETY: as in `splat`.
        unsafe { _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), _mm512_setzero_ps()) }
    }

    #[inline(always)]
    fn shift_to_exponent(self, number: __m512, addend: u32) -> __m512 {
        // SAFETY: as in `splat`.
        unsafe {
            let sum = _mm512_add_epi32(_mm512_castps_si512(number), _mm512_set1_epi32(addend.cast_signed()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(sum))
        }
    }
}

impl Vector for Avx2 {
    /// The first eight, then the others.
    type Floats = (__m256, __m256);

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        // SAFETY: the token says that the processor has the instruction.
        let half = unsafe { _mm256_set1_ps(value) };
        (half, half)
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Floats {
        // SAFETY: as in `splat`, and the array has the floats of two registers.
        unsafe { (_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(LANES / 2))) }
    }

    #[inline(always)]
    fn store(self, floats: Self::Floats, to: &mut [f32; LANES]) {
        // SAFETY: as in `load`.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), floats.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(LANES / 2), floats.1);
        }
    }

    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as in `splat`.
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn subtract(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as in `splat`.
        unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as in `splat`.
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn greater(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as in `splat`. The instruction gives its second operand unless the first is greater.
        unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn lesser(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as in `splat`. The instruction gives its second operand unless the first is less.
        unsafe { (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn zero_if_less(self, a: Self::Floats, b: Self::Floats, value: Self::Floats) -> Self::Floats {
        // SAFETY: as in `splat`. What is less is all ones.
        unsafe {
            (
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0), value.0),
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1), value.1),
            )
        }
    }

    #[inline(always)]
    fn shift_to_exponent(self, number: Self::Floats, addend: u32) -> Self::Floats {
        // SAFETY: as in `splat`.
        unsafe {
            let addend = _mm256_set1_epi32(addend.cast_signed());
            let first = _mm256_add_epi32(_mm256_castps_si256(number.0), addend);
            let second = _mm256_add_epi32(_mm256_castps_si256(number.1), addend);
            (_mm256_castsi256_ps(_mm256_slli_epi32::<23>(first)), _mm256_castsi256_ps(_mm256_slli_epi32::<23>(second)))
        }
    }
}
