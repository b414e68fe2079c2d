//! Sizes and costs as polynomials in the symbols of a graph.
//!
//! A size is a product of dimensions and a cost a sum of such products, so the cost of a whole
//! graph is one polynomial with a handful of terms, whatever the number of operators. Evaluating
//! it takes nanoseconds and allocates nothing.

use smallvec::SmallVec;

use super::{Binding, Dim, Shape, Symbol};

/// `coefficient` times a product of symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Monomial {
    /// The exponent of symbol `i` in byte `i`.
    powers: [u8; Symbol::MAX],
    coefficient: u64,
}

impl Monomial {
    pub(crate) const fn constant(coefficient: u64) -> Self {
        Self { powers: [0; Symbol::MAX], coefficient }
    }

    /// The number of elements of a tensor of this shape.
    pub(crate) fn elements(shape: &Shape) -> Self {
        shape.dims().iter().fold(Self::constant(1), |product, &dim| product.times_dim(dim))
    }

    pub(crate) fn times_dim(mut self, dim: Dim) -> Self {
        self.coefficient = self.coefficient.saturating_mul(dim.coefficient);
        if let Some(symbol) = dim.symbol {
            let power = &mut self.powers[symbol.index()];
            *power = power.saturating_add(1);
        }
        self
    }

    pub(crate) const fn times(mut self, factor: u64) -> Self {
        self.coefficient = self.coefficient.saturating_mul(factor);
        self
    }

    /// The coefficient divided by `divisor`, rounded up.
    pub(crate) const fn divided_by(mut self, divisor: u64) -> Self {
        self.coefficient = self.coefficient.div_ceil(divisor);
        self
    }

    pub(crate) fn eval(&self, binding: &Binding) -> u64 {
        let mut value = self.coefficient;
        let mut powers = u64::from_le_bytes(self.powers);
        while powers != 0 {
            let byte = powers.trailing_zeros() / 8;
            value = value.saturating_mul(binding.values[byte as usize]);
            powers -= 1 << (byte * 8);
        }
        value
    }

    /// True if this is at least `other` under every binding.
    pub(crate) fn dominates(&self, other: &Self) -> bool {
        self.powers == other.powers && self.coefficient >= other.coefficient
    }
}

/// A sum of multiples of products of symbols, with saturating arithmetic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polynomial {
    /// Ascending in `powers`, which are pairwise different; no zero coefficients.
    terms: SmallVec<[Monomial; 2]>,
}

impl Polynomial {
    /// The polynomial that is `value` under every binding.
    pub fn constant(value: u64) -> Self {
        Self::default().plus(Monomial::constant(value))
    }

    /// The number of elements of a tensor of this shape.
    pub fn elements(shape: &Shape) -> Self {
        Self::default().plus(Monomial::elements(shape))
    }

    /// The value under `binding`; unbound symbols count as zero.
    pub fn eval(&self, binding: &Binding) -> u64 {
        self.terms.iter().fold(0, |sum, term| sum.saturating_add(term.eval(binding)))
    }

    pub(crate) fn plus(mut self, term: Monomial) -> Self {
        self.add_term(term);
        self
    }

    /// Adds `other` times `factor`.
    pub(crate) fn add_times(&mut self, other: &Self, factor: u64) {
        for term in &other.terms {
            self.add_term(term.times(factor));
        }
    }

    fn add_term(&mut self, term: Monomial) {
        if term.coefficient == 0 {
            return;
        }
        match self.terms.binary_search_by_key(&term.powers, |known| known.powers) {
            Ok(found) => {
                let sum = &mut self.terms[found].coefficient;
                *sum = sum.saturating_add(term.coefficient);
            }
            Err(place) => self.terms.insert(place, term),
        }
    }
}

impl From<Monomial> for Polynomial {
    fn from(term: Monomial) -> Self {
        Self::default().plus(term)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PAIRS, SEQUENCES, TOKENS};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn powers_multiply_and_like_terms_merge() {
        let square = Shape::new([3 * TOKENS, 2 * TOKENS]);
        let mut sum = Polynomial::elements(&square);
        sum.add_times(&Polynomial::elements(&square), 2);
        sum.add_times(&Polynomial::constant(5), 1);
        assert_eq!(sum.terms.len(), 2);
        assert_eq!(sum.eval(&Binding::new().bind(TOKENS, 10)), 3 * 600 + 5);
        assert_eq!(sum.eval(&Binding::new()), 5);
    }

    proptest! {
        #[test]
        fn a_polynomial_of_shapes_is_the_sum_of_their_elements(
            shapes in prop::collection::vec(prop::collection::vec((0u64..9, 0usize..4), 0..4), 0..6),
            tokens in 0u64..50,
            pairs in 0u64..50,
        ) {
            let dims = [None, Some(TOKENS), Some(SEQUENCES), Some(PAIRS)];
            let binding = Binding::iteration(tokens, 3, 7, pairs);
            let mut sum = Polynomial::default();
            let mut expected = 0;
            for dimensions in shapes {
                let shape =
                    Shape::new(dimensions.iter().map(|&(coefficient, symbol)| Dim { coefficient, symbol: dims[symbol] }));
                sum.add_times(&Polynomial::elements(&shape), 3);
                expected += 3 * shape.elements(&binding);
            }
            prop_assert_eq!(sum.eval(&binding), expected);
        }
    }
}
