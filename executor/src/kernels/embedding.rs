//! Rows picked by index: token embeddings and the rows whose logits are wanted.

use super::{WeightMatrix, check, check_indices, nonzero};
use crate::error::Result;

/// Copies the embeddings of `tokens` from the row-major `table[vocabulary, hidden]` to
/// `out[tokens, hidden]`.
///
/// # Errors
/// When a length does not fit or a token is not in the vocabulary.
pub fn embed(tokens: &[u32], table: &[f32], hidden: usize, out: &mut [f32]) -> Result<()> {
    copy_rows("embed", "tokens", tokens, table, hidden, out)
}

/// As [`embed`], from a packed table: a model whose output projection is tied to its embeddings
/// keeps one copy of them.
///
/// # Errors
/// When a length does not fit or a token is not in the vocabulary.
pub fn embed_panels<'a>(tokens: &[u32], table: impl Into<WeightMatrix<'a>>, out: &mut [f32]) -> Result<()> {
    let table = table.into();
    nonzero("embed_panels", "hidden", table.k())?;
    check("embed_panels", "out", out.len(), tokens.len().saturating_mul(table.k()))?;
    check_indices("embed_panels", "tokens", tokens, table.n())?;
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(table.k())) {
        table.copy_row(token as usize, out);
    }
    Ok(())
}

/// Copies rows `indices` of `x[rows, width]` to `out[indices, width]`: the last token of each
/// sequence, whose logits choose the next one.
///
/// # Errors
/// When a length does not fit or an index is not a row of `x`.
pub fn gather_rows(x: &[f32], width: usize, indices: &[u32], out: &mut [f32]) -> Result<()> {
    copy_rows("gather_rows", "indices", indices, x, width, out)
}

fn copy_rows(
    kernel: &'static str,
    operand: &'static str,
    indices: &[u32],
    table: &[f32],
    width: usize,
    out: &mut [f32],
) -> Result<()> {
    nonzero(kernel, "width", width)?;
    let rows = table.len() / width;
    check(kernel, "table", table.len(), rows * width)?;
    check(kernel, "out", out.len(), indices.len().saturating_mul(width))?;
    check_indices(kernel, operand, indices, rows)?;
    for (&index, out) in indices.iter().zip(out.chunks_exact_mut(width)) {
        let start = index as usize * width;
        out.copy_from_slice(&table[start..start + width]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ExecutorError;
    use crate::kernels::OwnedPanels;

    #[test]
    fn both_tables_give_the_same_rows() {
        let (vocabulary, hidden) = (131, 7);
        let table: Vec<f32> = (0..vocabulary * hidden).map(|i| i as f32).collect();
        let panels = OwnedPanels::pack(&table, vocabulary, hidden).unwrap();
        let tokens = [0, 130, 64, 63, 5, 130];
        let mut plain = vec![0.0; tokens.len() * hidden];
        let mut packed = plain.clone();
        embed(&tokens, &table, hidden, &mut plain).unwrap();
        embed_panels(&tokens, panels.view(), &mut packed).unwrap();
        assert_eq!(plain[hidden..2 * hidden], table[130 * hidden..]);
        assert_eq!(plain, packed);
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_named() {
        let error = embed(&[1, 4], &[0.0; 8], 2, &mut [0.0; 4]).unwrap_err();
        assert!(matches!(error, ExecutorError::IndexOutOfRange { at: 1, value: 4, limit: 4, .. }));
        assert_eq!(error.to_string(), "embed: `tokens[1]` is 4, but there are only 4");
    }

    #[test]
    fn the_last_rows_are_gathered_in_the_order_asked_for() {
        let x = [0.0, 0.1, 1.0, 1.1, 2.0, 2.1];
        let mut out = [0.0; 4];
        gather_rows(&x, 2, &[2, 0], &mut out).unwrap();
        assert_eq!(out, [2.0, 2.1, 0.0, 0.1]);
    }
}
