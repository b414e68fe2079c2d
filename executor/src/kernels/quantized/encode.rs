//! Rows of weights to and from the blocks of GGUF files.

use half::f16;

use super::{BLOCK, QuantFormat, half_at, whole_blocks};
use crate::error::Result;
use crate::kernels::check;

/// Rounds `values`, whole rows side by side, to `blocks` of `format`, as GGUF files have them.
///
/// The scale of a block is that which maps its value of largest magnitude to the end of the range
/// (Q8_0, Q4_0), or its range to the whole range of quants (Q4_1).
///
/// # Errors
/// When `values` is not made of whole blocks, or `blocks` does not have as many.
pub fn quantize(format: QuantFormat, values: &[f32], blocks: &mut [u8]) -> Result<()> {
    whole_blocks("quantize", values.len())?;
    check("quantize", "blocks", blocks.len(), values.len() / BLOCK * format.block_bytes())?;
    for (values, block) in values.chunks_exact(BLOCK).zip(blocks.chunks_exact_mut(format.block_bytes())) {
        match format {
            QuantFormat::Q8_0 => {
                let top = values.iter().fold(0.0f32, |top, v| top.max(v.abs()));
                let inverse = put_scale(block, top / 127.0);
                for (quant, value) in block[2..].iter_mut().zip(values) {
                    *quant = (value * inverse).round().clamp(-128.0, 127.0) as i8 as u8;
                }
            }
            QuantFormat::Q4_0 => {
                let far = values.iter().fold(0.0f32, |far, &v| if v.abs() > far.abs() { v } else { far });
                let inverse = put_scale(block, far / -8.0);
                put_nibbles(&mut block[2..], values, |value| value * inverse + 8.0);
            }
            QuantFormat::Q4_1 => {
                let low = values.iter().fold(f32::INFINITY, |a, &b| a.min(b));
                let high = values.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                let inverse = put_scale(block, (high - low) / 15.0);
                block[2..4].copy_from_slice(&f16::from_f32(low).to_le_bytes());
                put_nibbles(&mut block[4..], values, |value| (value - low) * inverse);
            }
        }
    }
    Ok(())
}

/// Writes the scale; returns what a value is multiplied by.
fn put_scale(block: &mut [u8], scale: f32) -> f32 {
    block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn put_nibbles(quants: &mut [u8], values: &[f32], scaled: impl Fn(f32) -> f32) {
    let nibble = |value: f32| scaled(value).round().clamp(0.0, 15.0) as u8;
    let (low, high) = values.split_at(BLOCK / 2);
    for ((quant, low), high) in quants.iter_mut().zip(low).zip(high) {
        *quant = nibble(*low) | nibble(*high) << 4;
    }
}

/// The values of `blocks`, as GGUF files have them.
///
/// # Errors
/// When `values` is not made of whole blocks, or `blocks` does not have as many.
pub fn dequantize(format: QuantFormat, blocks: &[u8], values: &mut [f32]) -> Result<()> {
    whole_blocks("dequantize", values.len())?;
    check("dequantize", "blocks", blocks.len(), values.len() / BLOCK * format.block_bytes())?;
    for (values, block) in values.chunks_exact_mut(BLOCK).zip(blocks.chunks_exact(format.block_bytes())) {
        let scale = half_at(block, 0);
        if format == QuantFormat::Q8_0 {
            for (value, &quant) in values.iter_mut().zip(&block[2..]) {
                *value = scale * f32::from(quant as i8);
            }
            continue;
        }
        let (quants, least) = match format {
            QuantFormat::Q4_1 => (&block[4..], half_at(block, 1)),
            _ => (&block[2..], 0.0),
        };
        let offset = format.offset() as f32;
        let (low, high) = values.split_at_mut(BLOCK / 2);
        for ((low, high), quant) in low.iter_mut().zip(high).zip(quants) {
            *low = scale * (f32::from(quant & 0x0f) - offset) + least;
            *high = scale * (f32::from(quant >> 4) - offset) + least;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A block of each format, by hand from the definition: scale 0.5 is 0x3800, minimum -1 is
    /// 0xbc00 in binary16.
    #[test]
    fn blocks_mean_what_the_format_says() {
        let mut values = [0.0; BLOCK];
        let mut q8 = vec![0x00, 0x38];
        q8.extend((0..32).map(|i| (i - 16) as i8 as u8));
        dequantize(QuantFormat::Q8_0, &q8, &mut values).unwrap();
        assert_eq!((values[0], values[31]), (-8.0, 7.5));
        let mut q4 = vec![0x00, 0x38];
        q4.extend((0..16).map(|i| i | (15 - i) << 4));
        dequantize(QuantFormat::Q4_0, &q4, &mut values).unwrap();
        assert_eq!((values[0], values[15], values[16], values[31]), (-4.0, 3.5, 3.5, -4.0));
        q4.splice(2..2, [0x00, 0xbc]);
        dequantize(QuantFormat::Q4_1, &q4, &mut values).unwrap();
        assert_eq!((values[0], values[15], values[16], values[31]), (-1.0, 6.5, 6.5, -1.0));
    }

    proptest! {
        #[test]
        fn rounding_is_off_by_half_a_step_at_most(values in prop::collection::vec(-8.0f32..8.0, BLOCK)) {
            // A step, plus what binary16 does to the scale over the range of quants.
            for (format, steps, range) in [(QuantFormat::Q8_0, 127.0, 1.0), (QuantFormat::Q4_0, 8.0, 1.0), (QuantFormat::Q4_1, 15.0, 2.0)] {
                let mut blocks = vec![0; format.block_bytes()];
                quantize(format, &values, &mut blocks).unwrap();
                let mut back = [0.0; BLOCK];
                dequantize(format, &blocks, &mut back).unwrap();
                let top = values.iter().fold(0.0f32, |top, v| top.max(v.abs()));
                // Q4_0 has no quant for the far end of the other sign.
                let half_step = if format == QuantFormat::Q4_0 { 1.0 } else { 0.5 } * range * top / steps;
                for (value, back) in values.iter().zip(back) {
                    prop_assert!((value - back).abs() <= half_step + 2e-3 * top, "{format:?}: {value} became {back}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_whole_block_is_refused() {
        assert!(quantize(QuantFormat::Q4_0, &[0.0; 31], &mut [0; 18]).is_err());
        assert!(dequantize(QuantFormat::Q4_0, &[0; 17], &mut [0.0; 32]).is_err());
    }
}
