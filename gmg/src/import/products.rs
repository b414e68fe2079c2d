//! Arithmetic of the operators of PyTorch that multiply matrices, from the shapes of their tensors.
//!
//! A multiply-add counts as two. Sums, bias additions and softmaxes are left out, as is the
//! custom; so are operators that do nothing else.
//!
//! | operators | operations | source |
//! |---|---|---|
//! | `mm`, `addmm`, `bmm`, `baddbmm`, `linear`, `mv`, `dot` | `2 * batch * n * k * m` | |
//! | convolution | `2 * outputs * weights per output channel` | every output is a dot product |
//! | its transpose | `2 * inputs * weights per input channel` | every input is spread |
//! | its backward | as the forward, for each gradient that is made | |
//! | attention | `2 * batch * heads * queries * keys * (d_k + d_v)` | q·k and p·v |
//! | its backward | `2 * batch * heads * queries * keys * (3 * d_k + 2 * d_v)` | five products, one of them recomputed; Dao et al. 2022 |

use crate::units::Flops;

/// The operations of the operator `name` with inputs and outputs of these shapes, by position;
/// what is no tensor has an empty shape. [`None`] if the operator multiplies no matrices or the
/// shapes are not those that it takes. [`Flops::MAX`] stands for more than can be.
pub(super) fn flops(name: &str, inputs: &[&[u64]], outputs: &[&[u64]]) -> Option<Flops> {
    let name = name.rsplit("::").next().unwrap_or(name).trim_end_matches('_');
    let shape = |position: usize| inputs.get(position).copied().filter(|shape| !shape.is_empty());
    let products = match name {
        "mm" | "bmm" | "_int_mm" | "_scaled_mm" => matrices(shape(0)?, shape(1)?)?,
        "addmm" | "baddbmm" | "_addmm_activation" => matrices(shape(1)?, shape(2)?)?,
        "linear" => {
            let (x, &[rows, depth]) = (shape(0)?, shape(1)?) else { return None };
            (x.last() == Some(&depth)).then(|| elements(x).saturating_mul(rows))?
        }
        "mv" => elements(shape(0)?),
        "addmv" => elements(shape(1)?),
        "dot" | "vdot" => elements(shape(0)?),
        "_scaled_dot_product_flash_attention"
        | "_scaled_dot_product_efficient_attention"
        | "_scaled_dot_product_cudnn_attention"
        | "_scaled_dot_product_flash_attention_for_cpu" => attention(shape(0)?, shape(1)?, shape(2)?, [1, 1])?,
        "_scaled_dot_product_flash_attention_backward"
        | "_scaled_dot_product_efficient_attention_backward"
        | "_scaled_dot_product_cudnn_attention_backward"
        | "_scaled_dot_product_flash_attention_for_cpu_backward" => attention(shape(1)?, shape(2)?, shape(3)?, [3, 2])?,
        "convolution_backward" => {
            let made = outputs.iter().take(2).filter(|shape| shape.len() > 2).count() as u64;
            elements(shape(0)?).saturating_mul(per_channel(shape(2)?)?).saturating_mul(made)
        }
        _ if !name.contains("conv") || name.contains("backward") => return None,
        _ if name.contains("transpose") => elements(shape(0)?).saturating_mul(per_channel(shape(1)?)?),
        _ => elements(outputs.first()?).saturating_mul(per_channel(shape(1)?)?),
    };
    Some(Flops(products).times(2))
}

fn elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |product, &dim| product.saturating_mul(dim))
}

/// `[.., n, k]` by `[.., k, m]`.
fn matrices(left: &[u64], right: &[u64]) -> Option<u64> {
    let (&[.., depth], &[.., inner, columns]) = (left, right) else { return None };
    (depth == inner).then(|| elements(left).saturating_mul(columns))
}

/// Weights that one channel of the first dimension has.
fn per_channel(weight: &[u64]) -> Option<u64> {
    (weight.len() > 2).then(|| elements(&weight[1..]))
}

/// Queries `[b, h, s, d]`, keys `[b, h, t, d]`, values `[b, h, t, e]`; how often the two depths
/// are gone through.
fn attention(queries: &[u64], keys: &[u64], values: &[u64], times: [u64; 2]) -> Option<u64> {
    let (&[batch, heads, length, depth], &[_, _, context, _], &[_, _, _, width]) = (queries, keys, values) else {
        return None;
    };
    let pairs = elements(&[batch, heads, length, context]);
    Some(pairs.saturating_mul(depth.saturating_mul(times[0]).saturating_add(width.saturating_mul(times[1]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Shapes<'s> = &'s [&'s [u64]];

    #[test]
    fn products_are_counted_by_hand() {
        let cases: [(&str, Shapes<'_>, Shapes<'_>, u64); 9] = [
            // 512 x 1280 by 1280 x 3840.
            ("aten::addmm", &[&[3840], &[512, 1280], &[1280, 3840]], &[&[512, 3840]], 2 * 512 * 1280 * 3840),
            ("aten::mm", &[&[2, 3], &[3, 5]], &[&[2, 5]], 60),
            ("aten::bmm", &[&[7, 2, 3], &[7, 3, 5]], &[&[7, 2, 5]], 420),
            ("aten::linear", &[&[4, 2, 3], &[5, 3], &[5]], &[&[4, 2, 5]], 240),
            // The first layer of ResNet: 64 filters of 3 x 7 x 7 over 112 x 112 places.
            (
                "aten::cudnn_convolution",
                &[&[1, 3, 224, 224], &[64, 3, 7, 7]],
                &[&[1, 64, 112, 112]],
                2 * 64 * 112 * 112 * 147,
            ),
            (
                "aten::convolution_backward",
                &[&[1, 64, 112, 112], &[1, 3, 224, 224], &[64, 3, 7, 7]],
                &[&[1, 3, 224, 224], &[64, 3, 7, 7], &[]],
                2 * 2 * 64 * 112 * 112 * 147,
            ),
            (
                "aten::_scaled_dot_product_flash_attention",
                &[&[2, 8, 10, 64], &[2, 8, 20, 64], &[2, 8, 20, 64]],
                &[],
                2 * 2 * 8 * 10 * 20 * 128,
            ),
            (
                "aten::_scaled_dot_product_flash_attention_backward",
                &[&[2, 8, 10, 64], &[2, 8, 10, 64], &[2, 8, 20, 64], &[2, 8, 20, 64]],
                &[],
                5 * 2 * 8 * 10 * 20 * 128,
            ),
            ("aten::mv", &[&[6, 7], &[7]], &[&[6]], 84),
        ];
        for (name, inputs, outputs, expected) in cases {
            assert_eq!(flops(name, inputs, outputs), Some(Flops(expected)), "{name}");
        }
    }

    #[test]
    fn shapes_that_do_not_fit_count_nothing() {
        assert_eq!(flops("aten::mm", &[&[2, 3], &[4, 5]], &[]), None);
        assert_eq!(flops("aten::mm", &[&[2, 3]], &[]), None);
        assert_eq!(flops("aten::add", &[&[2, 3], &[2, 3]], &[]), None);
        assert_eq!(flops("aten::mm", &[&[u64::MAX, 3], &[3, u64::MAX]], &[]), Some(Flops::MAX));
    }
}
