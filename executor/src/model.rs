//! What the executor needs of a model: its template, where each weight lies, and its weights.

mod ports;
mod weights;

use std::sync::Arc;

use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::{OpGraph, Role, TensorView};
use slicescheduler_gmg::id::TensorId;
use slicescheduler_gmg::templates::{DenseSpec, EncoderSpec, MoeSpec};
use slicescheduler_gmg::units::Bytes;

pub use ports::ModelKind;
pub(crate) use ports::{Input, Output, Ports};
pub(crate) use weights::round_to;
pub use weights::{SeededWeights, Shard, WeightSource};

use crate::arena::{ARENA_ALIGN, Arena, Region};
use crate::error::{ExecutorError, Result};
use crate::kernels::{HalfFormat, KvLayout, PanelMatrix, QuantFormat, QuantMatrix, pack_panels, pack_quantized};

/// How a weight lies in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightShape {
    /// In single precision, whatever its type.
    Vector(usize),
    /// `[n, k]`, [packed](WeightMatrix).
    Matrix { n: usize, k: usize, format: MatrixFormat },
    /// `[experts, n, k]`: so many matrices one after the other.
    Experts { experts: usize, n: usize, k: usize, format: MatrixFormat },
}

/// The element type of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixFormat {
    Single,
    Half(HalfFormat),
    Quantized(QuantFormat),
}

impl MatrixFormat {
    fn of(dtype: DType) -> Option<Self> {
        let half = || HalfFormat::of(dtype).map(Self::Half);
        let quantized = || QuantFormat::of(dtype).map(Self::Quantized);
        (dtype == DType::F32).then_some(Self::Single).or_else(half).or_else(quantized)
    }

    /// The bytes of `count` packed matrices `[n, k]` at `offset`.
    fn packed(self, offset: Bytes, count: usize, n: usize, k: usize) -> Region {
        let elements = packed_elements(self, n, k).saturating_mul(count);
        match self {
            Self::Single => Region::of::<f32>(offset, elements),
            Self::Half(_) => Region::of::<u16>(offset, elements),
            Self::Quantized(_) => Region::of::<u8>(offset, elements),
        }
    }
}

impl WeightShape {
    /// The bytes of the weight at `offset`.
    pub(crate) fn region(self, offset: Bytes) -> Region {
        match self {
            Self::Vector(length) => Region::of::<f32>(offset, length),
            Self::Matrix { n, k, format } => format.packed(offset, 1, n, k),
            Self::Experts { experts, n, k, format } => format.packed(offset, experts, n, k),
        }
    }
}

/// Where a tensor of a template lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// Among the job's activations.
    Activations,
    /// At this offset of the weight slot.
    Slot(Bytes, WeightShape),
    /// In the KV blocks, as this layer.
    Cache(usize),
}

/// A decoder, dense or a mixture of experts, or an encoder with its weights, packed for the CPU kernels, in host memory.
///
/// The packed weights are the image of a weight slot: loading a model onto a device is a copy of
/// [`slot_bytes`](Self::slot_bytes) bytes, from here or from another device's slot. Cheap to clone;
/// clones share the image.
///
/// ```
/// use std::sync::Arc;
///
/// use slicescheduler_executor::model::{CpuModel, SeededWeights};
/// use slicescheduler_gmg::templates::{DenseSpec, dense};
///
/// let spec = DenseSpec::tiny();
/// let template = Arc::new(dense(&spec)?);
/// let model = CpuModel::decoder(&spec, template, &SeededWeights::new(7))?;
/// assert_eq!(model.slot_bytes(), spec.weight_bytes());
/// assert_eq!(model.kv_block_bytes(16), spec.kv_bytes_per_token().times(16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CpuModel {
    template: Arc<OpGraph>,
    homes: Arc<[Home]>,
    image: Arc<Arena>,
    slot_bytes: Bytes,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    max_context: u32,
    ports: Arc<Ports>,
}

impl CpuModel {
    /// Packs the weights of a model whose template was made from `spec` by
    /// [`dense`](slicescheduler_gmg::templates::dense). The graph's model must have the same
    /// `template`. Takes [`slot_bytes`](Self::slot_bytes) of host memory and, while it runs, the
    /// size of the largest weight.
    ///
    /// Sequences may have `spec.max_context` tokens; raise it before the call if prompts need more.
    ///
    /// # Errors
    /// When the template is not that of a decoder, an activation or the KV cache is not `F32`, a weight
    /// has an element type without a kernel, the source fails, or there is no memory.
    pub fn decoder(spec: &DenseSpec, template: Arc<OpGraph>, weights: &dyn WeightSource) -> Result<Self> {
        Self::pack(template, spec.max_context, weights)
    }

    /// As [`decoder`](Self::decoder), of a model whose template was made from `spec` by
    /// [`moe`](slicescheduler_gmg::templates::moe), all experts of which are here.
    ///
    /// # Errors
    /// As [`decoder`](Self::decoder).
    pub fn mixture_of_experts(spec: &MoeSpec, template: Arc<OpGraph>, weights: &dyn WeightSource) -> Result<Self> {
        Self::pack(template, spec.base.max_context, weights)
    }

    /// As [`decoder`](Self::decoder), of a model whose template was made from `spec` by
    /// [`encoder`](slicescheduler_gmg::templates::encoder). It has no cache: a job has whole sequences
    /// as rows, and gives one vector for each.
    ///
    /// # Errors
    /// As [`decoder`](Self::decoder).
    pub fn encoder(spec: &EncoderSpec, template: Arc<OpGraph>, weights: &dyn WeightSource) -> Result<Self> {
        Self::pack(template, u32::try_from(spec.positions).unwrap_or(u32::MAX), weights)
    }

    fn pack(template: Arc<OpGraph>, max_context: u32, weights: &dyn WeightSource) -> Result<Self> {
        let (homes, slot_bytes) = homes(&template)?;
        let ports = Ports::of(&template)?;
        let (kv_heads, head_dim) = ports::kv_shape(&template, &ports)?;
        let layers = homes.iter().filter(|home| matches!(home, Home::Cache(_))).count();
        let mut image = Arena::new(slot_bytes)?;
        pack(&template, &homes, weights, &mut image)?;
        Ok(Self {
            template,
            homes: homes.into(),
            image: Arc::new(image),
            slot_bytes,
            layers,
            kv_heads,
            head_dim,
            max_context,
            ports: Arc::new(ports),
        })
    }

    /// The template.
    pub fn template(&self) -> &Arc<OpGraph> {
        &self.template
    }

    /// How it reads and answers.
    pub fn kind(&self) -> ModelKind {
        self.ports.kind()
    }

    /// The [`kind`](Self::kind) of a model of this template.
    ///
    /// # Errors
    /// When the template is that of neither a decoder nor an encoder.
    pub fn kind_of(template: &OpGraph) -> Result<ModelKind> {
        Ok(Ports::of(template)?.kind())
    }

    /// The [`slot_bytes`](Self::slot_bytes) of a model of this template, without loading it.
    ///
    /// # Errors
    /// When the template is that of neither a decoder nor an encoder, or a tensor has an element type without a kernel.
    pub fn slot_bytes_for(template: &OpGraph) -> Result<Bytes> {
        ports::kv_shape(template, &Ports::of(template)?)?;
        homes(template).map(|(_, slot_bytes)| slot_bytes)
    }

    /// Bytes that a weight slot must have: what the graph's model must count as its weights. Equal
    /// to the template's weights where the rows of every matrix are a multiple of
    /// [`PANEL`](crate::kernels::PANEL) (if quantized, of [`COLUMNS`](crate::kernels::COLUMNS)) and
    /// vectors are in single precision, more otherwise.
    pub fn slot_bytes(&self) -> Bytes {
        self.slot_bytes
    }

    /// Bytes that a KV block of `block_tokens` tokens must have; none for an encoder.
    pub fn kv_block_bytes(&self, block_tokens: u32) -> Bytes {
        self.kv_layout(block_tokens).block_bytes()
    }

    /// The longest sequence, in tokens.
    pub fn max_context(&self) -> u32 {
        self.max_context
    }

    pub(crate) fn kv_layout(&self, block_tokens: u32) -> KvLayout {
        KvLayout {
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            block_tokens: block_tokens as usize,
        }
    }

    pub(crate) fn image(&self) -> &Arc<Arena> {
        &self.image
    }

    pub(crate) fn home(&self, tensor: TensorId) -> Option<Home> {
        self.homes.get(tensor.index()).copied()
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }
}

fn homes(template: &OpGraph) -> Result<(Vec<Home>, Bytes)> {
    let (mut end, mut layers) = (Bytes::ZERO, 0);
    let mut homes = Vec::with_capacity(template.tensor_count() as usize);
    for view in template.tensors() {
        homes.push(match view.tensor.role {
            Role::Weight => {
                let (offset, shape) = (end, weight_shape(&view)?);
                end = shape.region(offset).end().align_up(ARENA_ALIGN as u64);
                Home::Slot(offset, shape)
            }
            Role::KvCache => {
                supported(&view, "an F32 cache")?;
                layers += 1;
                Home::Cache(layers - 1)
            }
            Role::Input | Role::Activation | Role::Output => {
                if view.tensor.dtype.is_float() {
                    supported(&view, "F32")?;
                }
                Home::Activations
            }
        });
    }
    Ok((homes, end))
}

fn supported(view: &TensorView<'_>, expected: &'static str) -> Result<()> {
    if view.tensor.dtype == DType::F32 { Ok(()) } else { Err(unsupported(view, expected)) }
}

fn unsupported(view: &TensorView<'_>, expected: &'static str) -> ExecutorError {
    ExecutorError::UnsupportedTensor {
        tensor: view.name().to_string(),
        dtype: view.tensor.dtype,
        shape: view.tensor.shape.to_string(),
        expected,
    }
}

fn weight_shape(view: &TensorView<'_>) -> Result<WeightShape> {
    const EXPECTED: &str =
        "a vector, a matrix or one matrix per expert, of fixed size, F32, F16, BF16 or (a matrix) Q8_0, Q4_0 or Q4_1";
    let refused = || unsupported(view, EXPECTED);
    let dtype = view.tensor.dtype;
    let format = MatrixFormat::of(dtype).ok_or_else(refused)?;
    let dims: Option<Vec<usize>> =
        view.tensor.shape.dims().iter().map(|dim| usize::try_from(dim.as_fixed()?).ok()).collect();
    match dims.as_deref() {
        Some(&[length]) if !matches!(format, MatrixFormat::Quantized(_)) => Ok(WeightShape::Vector(length)),
        Some(&[n, k]) if (k as u64).is_multiple_of(dtype.block_elements()) => Ok(WeightShape::Matrix { n, k, format }),
        Some(&[experts, n, k]) if (k as u64).is_multiple_of(dtype.block_elements()) => {
            Ok(WeightShape::Experts { experts, n, k, format })
        }
        _ => Err(refused()),
    }
}

/// Elements of a packed matrix, as its format counts them.
const fn packed_elements(format: MatrixFormat, n: usize, k: usize) -> usize {
    match format {
        MatrixFormat::Single | MatrixFormat::Half(_) => PanelMatrix::packed_len(n, k),
        MatrixFormat::Quantized(format) => QuantMatrix::packed_len(n, k, format),
    }
}

fn pack(template: &OpGraph, homes: &[Home], weights: &dyn WeightSource, image: &mut Arena) -> Result<()> {
    let (mut plain, mut bits, mut stored) = (Vec::new(), Vec::<u16>::new(), Vec::new());
    for (view, home) in template.tensors().zip(homes) {
        let Home::Slot(offset, shape) = *home else { continue };
        let name = view.name().to_string();
        let region = shape.region(offset);
        let (experts, n, k, format) = match shape {
            WeightShape::Vector(length) => {
                weights.fill(Shard { name: &name, shape: &[length] }, image.operands().write(region)?)?;
                continue;
            }
            WeightShape::Matrix { n, k, format } => (None, n, k, format),
            WeightShape::Experts { experts, n, k, format } => (Some(experts), n, k, format),
        };
        // An expert's matrix is a shard of its own, so that no more than one of them is held unpacked.
        let elements = n.saturating_mul(k);
        let length = packed_elements(format, n, k);
        for expert in 0..experts.unwrap_or(1) {
            let named = experts.map(|_| format!("{name}.{expert}"));
            let shard = Shard { name: named.as_deref().unwrap_or(&name), shape: &[n, k] };
            let place = expert * length..(expert + 1) * length;
            if format == MatrixFormat::Single {
                resize(&mut plain, elements)?;
                weights.fill(shard, &mut plain)?;
            } else {
                let dtype = view.tensor.dtype;
                resize(&mut stored, usize::try_from(dtype.bytes(elements as u64).get()).unwrap_or(usize::MAX))?;
                weights.fill_stored(shard, dtype, &mut stored)?;
            }
            let mut operands = image.operands();
            match format {
                MatrixFormat::Single => pack_panels(&plain, n, k, &mut operands.write(region)?[place])?,
                MatrixFormat::Quantized(format) => {
                    pack_quantized(&stored, n, k, format, &mut operands.write(region)?[place])?;
                }
                MatrixFormat::Half(_) => {
                    resize(&mut bits, elements)?;
                    bits.clear();
                    bits.extend(stored.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes)));
                    pack_panels::<u16>(&bits, n, k, &mut operands.write(region)?[place])?;
                }
            }
        }
    }
    Ok(())
}

/// Makes room for so many elements; a model may say to have more than there is memory for.
fn resize<T: Clone + Default>(elements: &mut Vec<T>, count: usize) -> Result<()> {
    if elements.try_reserve_exact(count.saturating_sub(elements.len())).is_err() {
        let wanted = Bytes((count as u64).saturating_mul(size_of::<T>() as u64));
        return Err(ExecutorError::OutOfMemory { wanted });
    }
    elements.resize(count, T::default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use slicescheduler_gmg::templates::dense;

    use super::*;

    fn model(spec: &DenseSpec) -> Result<CpuModel> {
        CpuModel::decoder(spec, Arc::new(dense(spec).unwrap()), &SeededWeights::new(1))
    }

    #[test]
    fn weights_lie_side_by_side_in_the_order_of_the_template() {
        let model = model(&DenseSpec::tiny()).unwrap();
        let mut end = Bytes::ZERO;
        for home in &*model.homes {
            if let Home::Slot(offset, shape) = *home {
                assert_eq!(offset, end);
                end = shape.region(offset).end().align_up(64);
            }
        }
        assert_eq!(end, model.slot_bytes());
        assert_eq!(model.home(TensorId(u32::MAX)), None);
    }

    #[test]
    fn rows_that_make_no_whole_panel_take_more_than_the_template_says() {
        let mut spec = DenseSpec::tiny();
        spec.vocab = 65;
        let model = model(&spec).unwrap();
        // Two tables of 65 rows are padded to 128 rows of 64 elements.
        assert_eq!(model.slot_bytes(), spec.weight_bytes() + Bytes(2 * 63 * 64 * 4));
        assert_eq!(CpuModel::slot_bytes_for(model.template()).unwrap(), model.slot_bytes());
    }

    #[test]
    fn quantized_weights_take_as_much_as_in_their_file() {
        for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4_1] {
            let model = model(&DenseSpec::tiny().with_dtype(dtype)).unwrap();
            assert_eq!(model.slot_bytes(), DenseSpec::tiny().with_dtype(dtype).weight_bytes());
        }
    }

    #[test]
    fn a_tensor_of_another_type_is_named() {
        let error = model(&DenseSpec::tiny().with_dtype(DType::BF16)).unwrap_err();
        assert_eq!(error.to_string(), "tensor \"embedded\" is bf16 [tokens, 64]; F32 is supported");
        let error = model(&DenseSpec::tiny().with_dtype(DType::F8)).unwrap_err();
        assert!(
            error.to_string().starts_with("tensor \"embed.weight\" is f8 [256, 64]; a vector, a matrix or"),
            "{error}"
        );
    }
}
