//! From the rows of blocks of a file to panels.

use super::{BLOCK, COLUMNS, QuantFormat, QuantMatrix, whole_blocks};
use crate::error::Result;
use crate::kernels::check;

/// Packs `source`, an `n` by `k` matrix as GGUF files have it (row-major, whole blocks), into panels;
/// what fills up the last panel is zero.
///
/// # Errors
/// When `k` is no multiple of 32, or a length does not fit.
pub fn pack_quantized(source: &[u8], n: usize, k: usize, format: QuantFormat, packed: &mut [u8]) -> Result<()> {
    whole_blocks("pack_quantized", k)?;
    let (blocks, block_bytes) = (k / BLOCK, format.block_bytes());
    let row_bytes = blocks * block_bytes;
    check("pack_quantized", "source", source.len(), n.saturating_mul(row_bytes))?;
    check("pack_quantized", "packed", packed.len(), QuantMatrix::packed_len(n, k, format))?;
    if row_bytes == 0 {
        return Ok(());
    }
    packed.fill(0);
    let group_stride = 4 * COLUMNS;
    let quant_bytes = format.quant_bytes();
    let scale_bytes = block_bytes - quant_bytes;
    for (rows, panel) in source.chunks(COLUMNS * row_bytes).zip(packed.chunks_exact_mut(COLUMNS * row_bytes)) {
        let (quants, halves) = panel.split_at_mut(blocks * COLUMNS * quant_bytes);
        let (scales, minima) = halves.split_at_mut(blocks * COLUMNS * 2);
        for (column, row) in rows.chunks_exact(row_bytes).enumerate() {
            for (index, block) in row.chunks_exact(block_bytes).enumerate() {
                let (head, bytes) = block.split_at(scale_bytes);
                let at = (index * COLUMNS + column) * 2;
                scales[at..at + 2].copy_from_slice(&head[..2]);
                if format.has_minimum() {
                    minima[at..at + 2].copy_from_slice(&head[2..]);
                }
                let groups = quants[index * COLUMNS * quant_bytes..].chunks_mut(group_stride);
                for (group, from) in groups.zip(bytes.chunks_exact(4)) {
                    let to = &mut group[column * 4..column * 4 + 4];
                    to.copy_from_slice(from);
                    if format == QuantFormat::Q8_0 {
                        to.iter_mut().for_each(|byte| *byte ^= 0x80);
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::quantized::{dequantize, quantize};

    #[test]
    fn a_packed_matrix_has_the_rows_of_its_file_and_their_size() {
        for format in [QuantFormat::Q8_0, QuantFormat::Q4_0, QuantFormat::Q4_1] {
            for (n, k) in [(1, 32), (16, 64), (37, 96)] {
                let values: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.7).sin()).collect();
                let mut file = vec![0; n * k / BLOCK * format.block_bytes()];
                quantize(format, &values, &mut file).unwrap();
                let mut packed = vec![1; QuantMatrix::packed_len(n, k, format)];
                pack_quantized(&file, n, k, format, &mut packed).unwrap();
                assert_eq!(packed.len(), file.len() / n * n.next_multiple_of(COLUMNS));
                let matrix = QuantMatrix::new(&packed, n, k, format).unwrap();
                for (row, file) in file.chunks_exact(k / BLOCK * format.block_bytes()).enumerate() {
                    let (mut of_file, mut of_panel) = (vec![0.0; k], vec![0.0; k]);
                    dequantize(format, file, &mut of_file).unwrap();
                    matrix.copy_row(row, &mut of_panel);
                    assert_eq!(of_file, of_panel, "{format:?}, row {row} of {n} by {k}");
                }
            }
        }
        assert!(pack_quantized(&[0; 18], 1, 33, QuantFormat::Q4_0, &mut [0; 288]).is_err());
    }
}
