//! The product with 512-bit registers and their multiply-add of 16-bit integers by pairs.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm256_loadu_si256, _mm512_add_ps, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_cvtph_ps,
    _mm512_dpwssd_epi32, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_srli_epi16, _mm512_storeu_ps,
};
use std::ops::Range;

use super::product::store;
use super::rows::QuantRows;
use super::{BLOCK, COLUMNS, Output, Panel, QuantFormat, QuantMatrix};

/// True if the processor has the instructions.
pub(super) fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vnni")
}

/// The product of rounded rows with some panels, into `y[rows, n]`. The processor must have the
/// instructions.
pub(super) fn multiply(x: &QuantRows, weights: QuantMatrix<'_>, panels: Range<usize>, output: Output, y: &mut [f32]) {
    debug_assert!(is_available());
    match weights.format {
        QuantFormat::Q8_0 => sweep::<Q8>(x, weights, panels, output, y),
        QuantFormat::Q4_0 => sweep::<Q4>(x, weights, panels, output, y),
        QuantFormat::Q4_1 => sweep::<Q4Minimum>(x, weights, panels, output, y),
    }
}

/// A format at compile time.
trait Format {
    const NIBBLES: bool;
    const MINIMA: bool;
    const OFFSET: i32;
}

struct Q8;
struct Q4;
struct Q4Minimum;

impl Format for Q8 {
    const NIBBLES: bool = false;
    const MINIMA: bool = false;
    const OFFSET: i32 = QuantFormat::Q8_0.offset();
}

impl Format for Q4 {
    const NIBBLES: bool = true;
    const MINIMA: bool = false;
    const OFFSET: i32 = QuantFormat::Q4_0.offset();
}

impl Format for Q4Minimum {
    const NIBBLES: bool = true;
    const MINIMA: bool = true;
    const OFFSET: i32 = QuantFormat::Q4_1.offset();
}

/// Panels are read once, in order of address. A lone row is multiplied with four of them at a time,
/// to have enough independent sums; more rows share one panel.
fn sweep<F: Format>(x: &QuantRows, weights: QuantMatrix<'_>, panels: Range<usize>, output: Output, y: &mut [f32]) {
    let n = weights.n;
    let mut target = Target { y, n, output };
    if target.y.len() == n {
        let fours = panels.len() / 4;
        for four in 0..fours {
            let first = panels.start + 4 * four;
            let four = [0, 1, 2, 3].map(|i| weights.panel(first + i));
            tile::<F, 1, 4>(x, 0, four, weights.blocks(), &mut target, first);
        }
        for panel in panels.start + 4 * fours..panels.end {
            tile::<F, 1, 1>(x, 0, [weights.panel(panel)], weights.blocks(), &mut target, panel);
        }
        return;
    }
    let rows = target.y.len() / n;
    for index in panels {
        let panel = [weights.panel(index)];
        let mut row = 0;
        while row < rows {
            match rows - row {
                8.. => {
                    tile::<F, 8, 1>(x, row, panel, weights.blocks(), &mut target, index);
                    row += 8;
                }
                4.. => {
                    tile::<F, 4, 1>(x, row, panel, weights.blocks(), &mut target, index);
                    row += 4;
                }
                2.. => {
                    tile::<F, 2, 1>(x, row, panel, weights.blocks(), &mut target, index);
                    row += 2;
                }
                _ => {
                    tile::<F, 1, 1>(x, row, panel, weights.blocks(), &mut target, index);
                    row += 1;
                }
            }
        }
    }
}

/// Where results go.
struct Target<'a> {
    y: &'a mut [f32],
    n: usize,
    output: Output,
}

/// `R` rows from `row` on times `P` panels, of which `first` is the first.
fn tile<F: Format, const R: usize, const P: usize>(
    x: &QuantRows,
    row: usize,
    panels: [Panel<'_>; P],
    blocks: usize,
    target: &mut Target<'_>,
    first: usize,
) {
    let quant_bytes = if F::NIBBLES { BLOCK / 2 } else { BLOCK };
    let last = row + R;
    assert!(x.quants.len() >= last * blocks * BLOCK && x.scales.len() >= last * blocks);
    assert!(x.sums.len() >= last * blocks && x.totals.len() >= last * blocks);
    for panel in &panels {
        assert!(panel.quants.len() >= blocks * COLUMNS * quant_bytes && panel.scales.len() >= blocks * COLUMNS * 2);
        assert!(!F::MINIMA || panel.minima.len() >= blocks * COLUMNS * 2);
    }
    let mut sums = [[[0.0; COLUMNS]; P]; R];
    // SAFETY: the processor has the instructions (a condition of `multiply`), and the asserts above
    // bound all that is read.
    unsafe { accumulate::<F, R, P>(x, row, panels, blocks, &mut sums) };
    for (row, sums) in (row..).zip(&sums) {
        let y = &mut target.y[row * target.n..(row + 1) * target.n];
        for (panel, sums) in (first..).zip(sums) {
            let y = &mut y[panel * COLUMNS..];
            let width = COLUMNS.min(y.len());
            store(target.output, &sums[..width], &mut y[..width]);
        }
    }
}

/// Registers go through no closure of others: one would be compiled without the instructions, and is a call
/// for every register unless the whole program is optimized at link time.
///
/// # Safety
/// The processor has the instructions. `x` has `blocks` blocks of `R` rows from `row` on, each panel
/// as many.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[allow(clippy::needless_range_loop, reason = "loops over registers, of a number known at compile time")]
unsafe fn accumulate<F: Format, const R: usize, const P: usize>(
    x: &QuantRows,
    row: usize,
    panels: [Panel<'_>; P],
    blocks: usize,
    results: &mut [[[f32; COLUMNS]; P]; R],
) {
    let mask = _mm512_set1_epi16(if F::NIBBLES { 0x0f } else { 0xff });
    let mut sums: [[__m512; P]; R] = [[_mm512_setzero_ps(); P]; R];
    for block in 0..blocks {
        let mut products: [[__m512i; P]; R] = [[_mm512_setzero_si512(); P]; R];
        for r in 0..R {
            let sum = x.sums[(row + r) * blocks + block];
            products[r] = [_mm512_set1_epi32(-F::OFFSET * sum); P];
        }
        let groups = if F::NIBBLES { 4 } else { 8 };
        for group in 0..groups {
            for p in 0..P {
                // SAFETY: group `group` of block `block` of the panel's quants, 64 bytes.
                let quants = unsafe {
                    let at = (block * groups + group) * 4 * COLUMNS;
                    _mm512_loadu_si512(panels[p].quants.as_ptr().add(at).cast())
                };
                // Bytes 0 and 2 of the group, and bytes 1 and 3; with halves of bytes, those of the high
                // halves belong to activations 16 further on.
                let odd = _mm512_srli_epi16::<8>(quants);
                let low = [_mm512_and_si512(quants, mask), _mm512_and_si512(odd, mask)];
                let high = if F::NIBBLES {
                    [_mm512_and_si512(_mm512_srli_epi16::<4>(quants), mask), _mm512_srli_epi16::<12>(quants)]
                } else {
                    [_mm512_setzero_si512(); 2]
                };
                for r in 0..R {
                    // SAFETY: group `group` of block `block` of the row, and with halves of bytes the group
                    // 16 activations on.
                    let (first, second) = unsafe {
                        let at = x.quants.as_ptr().add(((row + r) * blocks + block) * BLOCK + 4 * group);
                        (pairs(at), pairs(if F::NIBBLES { at.add(BLOCK / 2) } else { at }))
                    };
                    for i in 0..2 {
                        products[r][p] = _mm512_dpwssd_epi32(products[r][p], low[i], _mm512_set1_epi32(first[i]));
                        if F::NIBBLES {
                            products[r][p] = _mm512_dpwssd_epi32(products[r][p], high[i], _mm512_set1_epi32(second[i]));
                        }
                    }
                }
            }
        }
        for p in 0..P {
            // SAFETY: the scales of block `block`, 32 bytes.
            let scales = unsafe { halves(panels[p].scales.as_ptr().add(block * COLUMNS * 2)) };
            for r in 0..R {
                let scale = _mm512_mul_ps(scales, _mm512_set1_ps(x.scales[(row + r) * blocks + block]));
                let product = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(products[r][p]));
                sums[r][p] = _mm512_add_ps(sums[r][p], product);
            }
            if F::MINIMA {
                // SAFETY: the minima of block `block`, 32 bytes.
                let minima = unsafe { halves(panels[p].minima.as_ptr().add(block * COLUMNS * 2)) };
                for r in 0..R {
                    let total = _mm512_set1_ps(x.totals[(row + r) * blocks + block]);
                    sums[r][p] = _mm512_add_ps(sums[r][p], _mm512_mul_ps(minima, total));
                }
            }
        }
    }
    for (results, sums) in results.iter_mut().zip(sums) {
        for (result, sum) in results.iter_mut().zip(sums) {
            // SAFETY: a result has the floats of a register.
            unsafe { _mm512_storeu_ps(result.as_mut_ptr(), sum) };
        }
    }
}

/// Four activations, by pairs.
///
/// # Safety
/// Four can be read at `at`.
#[inline]
unsafe fn pairs(at: *const i16) -> [i32; 2] {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<[i32; 2]>().read_unaligned() }
}

/// 16 numbers in binary16, widened.
///
/// # Safety
/// The processor has the instructions, and 32 bytes can be read at `from`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn halves(from: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast::<__m256i>()) })
}
