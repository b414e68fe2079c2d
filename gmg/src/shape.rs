//! Shapes with symbolic dimensions, and the values that a job binds to the symbols.
//!
//! A template is one graph for every batch: its dimensions are multiples of [`Symbol`]s such as
//! [`TOKENS`]. A job brings a [`Binding`], and from then on every shape is a number.

pub mod polynomial;

use std::fmt;
use std::ops::Mul;

use smallvec::SmallVec;

pub use polynomial::Polynomial;

/// A quantity that a job binds to a value. Symbols belong to a graph; the four standard ones mean
/// the same in every graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(u16);

/// Rows that the iteration processes: prompt tokens of all chunks plus one per decoding sequence.
pub const TOKENS: Symbol = Symbol(0);
/// Rows that need logits: sequences that emit a token in this iteration.
pub const SEQUENCES: Symbol = Symbol(1);
/// Tokens in the KV cache that attention reads, summed over the sequences of the batch, the new
/// tokens included.
pub const CONTEXT: Symbol = Symbol(2);
/// Query-key pairs: for every new token, the tokens it attends to (itself included), summed.
pub const PAIRS: Symbol = Symbol(3);

impl Symbol {
    /// Symbols that one graph can have, the four standard ones included. A small bound keeps
    /// [`Binding`] a plain copyable value.
    pub const MAX: usize = 8;

    const STANDARD: [&'static str; 4] = ["tokens", "sequences", "context", "pairs"];

    /// Every symbol that a graph can have, in order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..Self::MAX as u16).map(Self)
    }

    /// The symbol's position in a [`Binding`]; below [`Symbol::MAX`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Symbol {
    /// The name of a standard symbol; `s4` and up for a graph's own, whose name only the graph
    /// knows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::STANDARD.get(self.index()) {
            Some(name) => f.pad(name),
            None => write!(f, "s{}", self.0),
        }
    }
}

/// The symbols of one graph, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolTable {
    own: SmallVec<[Box<str>; 1]>,
}

impl SymbolTable {
    pub(crate) fn new() -> Self {
        Self { own: SmallVec::new() }
    }

    /// The symbol called `name`, if the graph has it.
    pub fn get(&self, name: &str) -> Option<Symbol> {
        let names = Symbol::STANDARD.into_iter().chain(self.own.iter().map(|own| &**own));
        (0u16..).zip(names).find(|(_, known)| *known == name).map(|(index, _)| Symbol(index))
    }

    /// The name of `symbol`, if the graph has it.
    pub fn name(&self, symbol: Symbol) -> Option<&str> {
        let own = || symbol.index().checked_sub(Symbol::STANDARD.len()).and_then(|index| self.own.get(index));
        Symbol::STANDARD.get(symbol.index()).copied().or_else(|| own().map(|name| &**name))
    }

    /// The symbol called `name`, added if it is new; `None` when the table is full.
    pub(crate) fn intern(&mut self, name: &str) -> Option<Symbol> {
        if let Some(symbol) = self.get(name) {
            return Some(symbol);
        }
        let index = Symbol::STANDARD.len() + self.own.len();
        if index >= Symbol::MAX {
            return None;
        }
        self.own.push(name.into());
        Some(Symbol(index as u16))
    }
}

/// One dimension: a number, or a multiple of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The number, or the factor of the symbol.
    pub coefficient: u64,
    /// The symbol, if the dimension depends on the job.
    pub symbol: Option<Symbol>,
}

impl Dim {
    /// A dimension of `size` elements for every job.
    pub const fn fixed(size: u64) -> Self {
        Self { coefficient: size, symbol: None }
    }

    /// A dimension of one element per unit of `symbol`.
    pub const fn of(symbol: Symbol) -> Self {
        Self { coefficient: 1, symbol: Some(symbol) }
    }

    /// The size under `binding`, saturating. An unbound symbol counts as zero: whoever takes a
    /// binding from outside checks it once with
    /// [`OpGraph::check_binding`](crate::graph::OpGraph::check_binding).
    pub const fn eval(self, binding: &Binding) -> u64 {
        match self.symbol {
            None => self.coefficient,
            Some(symbol) => self.coefficient.saturating_mul(binding.value(symbol)),
        }
    }

    /// The size, if it is the same for every job.
    pub const fn as_fixed(self) -> Option<u64> {
        match self.symbol {
            None => Some(self.coefficient),
            Some(_) => None,
        }
    }
}

impl From<u64> for Dim {
    fn from(size: u64) -> Self {
        Self::fixed(size)
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Self {
        Self::of(symbol)
    }
}

impl Mul<Symbol> for u64 {
    type Output = Dim;
    fn mul(self, symbol: Symbol) -> Dim {
        Dim { coefficient: self, symbol: Some(symbol) }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.symbol, self.coefficient) {
            (None, size) => write!(f, "{size}"),
            (Some(symbol), 1) => write!(f, "{symbol}"),
            (Some(symbol), factor) => write!(f, "{factor}*{symbol}"),
        }
    }
}

/// The dimensions of a tensor, outermost first; the last one is contiguous in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[Dim; 2]>);

impl Shape {
    /// A shape of the given dimensions: `Shape::new([TOKENS.into(), Dim::fixed(4096)])`.
    pub fn new(dims: impl IntoIterator<Item = Dim>) -> Self {
        Self(dims.into_iter().collect())
    }

    /// The usual shape of an activation: `rows` by `columns`.
    pub fn matrix(rows: impl Into<Dim>, columns: impl Into<Dim>) -> Self {
        Self::new([rows.into(), columns.into()])
    }

    /// A shape of one dimension.
    pub fn vector(length: impl Into<Dim>) -> Self {
        Self::new([length.into()])
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// The number of elements under `binding`, saturating; 1 for a scalar.
    pub fn elements(&self, binding: &Binding) -> u64 {
        self.0.iter().fold(1, |product, dim| product.saturating_mul(dim.eval(binding)))
    }

    /// The number of elements, if it is the same for every job.
    pub fn fixed_elements(&self) -> Option<u64> {
        self.0.iter().try_fold(1u64, |product, dim| Some(product.saturating_mul(dim.as_fixed()?)))
    }
}

impl<D: Into<Dim>, const N: usize> From<[D; N]> for Shape {
    fn from(dims: [D; N]) -> Self {
        Self::new(dims.map(Into::into))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (position, dim) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

/// The values of a job's symbols. A plain value: building and copying one never allocates.
///
/// # Example
///
/// ```
/// use slicescheduler_gmg::shape::{Binding, CONTEXT, PAIRS, SEQUENCES, TOKENS};
///
/// let mut batch = Binding::new();
/// batch.add_chunk(512, 0, false); // the first 512 tokens of a longer prompt
/// batch.add_chunk(1, 99, true); // a sequence that decodes its 100th token
/// assert_eq!(batch.value(TOKENS), 513);
/// assert_eq!(batch.value(SEQUENCES), 1);
/// assert_eq!(batch.value(CONTEXT), 612);
/// assert_eq!(batch.value(PAIRS), 512 * 513 / 2 + 100);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Binding {
    values: [u64; Symbol::MAX],
    bound: u8,
}

impl Binding {
    /// A binding in which nothing is bound.
    pub const fn new() -> Self {
        Self { values: [0; Symbol::MAX], bound: 0 }
    }

    /// The binding of an iteration: [`TOKENS`], [`SEQUENCES`], [`CONTEXT`] and [`PAIRS`].
    pub const fn iteration(tokens: u64, sequences: u64, context: u64, pairs: u64) -> Self {
        Self { values: [tokens, sequences, context, pairs, 0, 0, 0, 0], bound: 0b1111 }
    }

    /// This binding with `symbol` bound to `value`.
    #[must_use]
    pub const fn bind(mut self, symbol: Symbol, value: u64) -> Self {
        self.set(symbol, value);
        self
    }

    /// Binds `symbol` to `value`.
    pub const fn set(&mut self, symbol: Symbol, value: u64) {
        self.values[symbol.index()] = value;
        self.bound |= 1 << symbol.index();
    }

    /// Adds a sequence to the iteration: `new` tokens are processed after `cached` tokens whose KV
    /// is already stored, and `emits` says whether a token is sampled after the last of them.
    /// Binds the four standard symbols.
    pub const fn add_chunk(&mut self, new: u64, cached: u64, emits: bool) {
        let triangle = new.saturating_mul(new.saturating_add(1)) / 2;
        let pairs = new.saturating_mul(cached).saturating_add(triangle);
        let added = [new, emits as u64, cached.saturating_add(new), pairs];
        let mut index = 0;
        while index < added.len() {
            self.values[index] = self.values[index].saturating_add(added[index]);
            index += 1;
        }
        self.bound |= 0b1111;
    }

    /// The value of `symbol`; zero when it is not bound.
    pub const fn value(&self, symbol: Symbol) -> u64 {
        self.values[symbol.index()]
    }

    /// The value of `symbol`, if it is bound.
    pub const fn get(&self, symbol: Symbol) -> Option<u64> {
        if self.is_bound(symbol) { Some(self.value(symbol)) } else { None }
    }

    /// True if `symbol` has a value.
    pub const fn is_bound(&self, symbol: Symbol) -> bool {
        self.bound & (1 << symbol.index()) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_interned_by_name_up_to_the_bound() {
        let mut table = SymbolTable::new();
        assert_eq!(table.intern("tokens"), Some(TOKENS));
        let patches = table.intern("patches");
        assert_eq!(patches.map(Symbol::index), Some(4));
        assert_eq!(table.intern("patches"), patches);
        for name in ["a", "b", "c"] {
            assert!(table.intern(name).is_some());
        }
        assert_eq!(table.intern("one too many"), None);
        assert_eq!(table.name(PAIRS), Some("pairs"));
        assert_eq!(patches.and_then(|symbol| table.name(symbol)), Some("patches"));
    }

    #[test]
    fn dimensions_evaluate_saturating_and_read_like_a_formula() {
        let binding = Binding::new().bind(TOKENS, 7);
        let shape = Shape::new([2 * TOKENS, Dim::fixed(3)]);
        assert_eq!(shape.elements(&binding), 42);
        assert_eq!(shape.to_string(), "[2*tokens, 3]");
        assert_eq!(shape.fixed_elements(), None);
        assert_eq!((u64::MAX * TOKENS).eval(&binding), u64::MAX);
        assert_eq!(binding.get(CONTEXT), None);
        assert_eq!(Shape::new([]).elements(&binding), 1);
    }

    #[test]
    fn a_binding_is_a_copyable_value_of_72_bytes() {
        fn copyable<T: Copy + Send + Sync>() {}
        copyable::<Binding>();
        assert_eq!(size_of::<Binding>(), 72);
    }
}
