//! Durations on a lattice.

use smallvec::SmallVec;

use super::axis::{Axis, Position};
use super::completion;
use crate::cost::Confidence;

/// The most axes that a table can have.
pub const MAX_AXES: usize = 5;
/// The most cells that a table can have; what bounds the memory of a file's table.
pub const MAX_CELLS: usize = 1 << 22;

/// Why samples do not make a table.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// There is nothing to read from.
    #[error("no samples: expected at least one")]
    Empty,
    /// The number of axes is zero or too large.
    #[error("{found} axes: expected 1 to {MAX_AXES}")]
    Axes {
        /// The number of axes.
        found: usize,
    },
    /// A sample has a coordinate for another number of axes.
    #[error("a sample with {found} coordinates: expected {expected}")]
    Arity {
        /// The number of axes.
        expected: usize,
        /// The number of coordinates.
        found: usize,
    },
    /// A coordinate that is negative or not finite.
    #[error("{axis} = {value}: expected a finite number that is not negative")]
    Coordinate {
        /// The name of the axis.
        axis: String,
        /// The coordinate.
        value: f64,
    },
    /// A duration that is zero, negative or not finite.
    #[error("a duration of {nanos} ns: expected a finite number above zero")]
    Duration {
        /// The duration.
        nanos: f64,
    },
    /// The lattice that the samples span is too large: they are too scattered for it.
    #[error("the samples span {cells} cells ({knots:?} values per axis): expected at most {MAX_CELLS}")]
    TooLarge {
        /// The cells of the lattice, saturating.
        cells: usize,
        /// The values per axis.
        knots: Vec<usize>,
    },
}

/// What a table says about a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The duration, in nanoseconds; finite and above zero.
    pub nanos: f64,
    /// How it came about.
    pub confidence: Confidence,
}

/// Durations over the lattice that their samples span.
///
/// Cells of the lattice that were not measured are completed once, when the table is built: between
/// measured cells as [`completion`] says, beyond them by the growth of the axis that reaches them
/// with the least extrapolation. A reading interpolates linearly along one axis after the other,
/// from the last axis to the first; beyond the end of an axis it follows the line of
/// [`Axis::locate`], but never falls below the last sample. So a table whose last axes are
/// [fixed](Self::fix) reads bit for bit like the whole one.
///
/// Only `+ - * /` are used: readings are equal on every machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    axes: SmallVec<[Axis; 3]>,
    /// The last axis runs fastest.
    cells: Box<[Reading]>,
    samples: usize,
}

impl Table {
    /// Collects samples over `axes`, the first one slowest to vary in use: what is known earliest
    /// about a query goes last.
    pub fn builder(axes: impl IntoIterator<Item = Axis>) -> TableBuilder {
        TableBuilder { axes: axes.into_iter().collect(), coordinates: Vec::new(), nanos: Vec::new() }
    }

    /// Its axes.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The number of different points that were measured.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The cells of the lattice, the last axis running fastest.
    pub fn cells(&self) -> &[Reading] {
        &self.cells
    }

    /// The duration at `point`, one coordinate per axis; a coordinate that is missing is that of
    /// the first knot. O(2^axes + log knots).
    pub fn read(&self, point: &[f64]) -> Reading {
        let positions: SmallVec<[Position; MAX_AXES]> = self
            .axes
            .iter()
            .enumerate()
            .map(|(axis, knots)| knots.locate(point.get(axis).copied().unwrap_or(knots.knots()[0])))
            .collect();
        reduce(&self.axes, &positions, &self.cells)
    }

    /// The duration at `position` of its only axis; that of the first row if it has more.
    pub(crate) fn read_line(&self, position: &Position) -> Reading {
        between(position, &self.cells)
    }

    /// This table for one value of its last axis; a table with one axis keeps its only cell on
    /// an axis of one knot.
    #[must_use]
    pub fn fix(&self, value: f64) -> Self {
        let Some((last, rest)) = self.axes.split_last() else { return self.clone() };
        let position = last.locate(value);
        let cells = self.cells.chunks_exact(last.knots().len()).map(|row| between(&position, row));
        let cells: Box<[_]> = cells.collect();
        let axes = match rest {
            [] => SmallVec::from_iter([last.clone().with_knots([value.max(0.0)])]),
            rest => SmallVec::from_iter(rest.iter().cloned()),
        };
        Self { axes, cells, samples: self.samples }
    }

    /// The table with every duration multiplied by `factor`.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.cells.iter_mut().for_each(|cell| cell.nanos *= factor);
        self
    }
}

/// The reading at `positions` of the lattice `cells` over as many axes.
fn reduce(axes: &[Axis], positions: &[Position], cells: &[Reading]) -> Reading {
    let (Some((position, rest)), Some((_, axes))) = (positions.split_first(), axes.split_first()) else {
        return cells[0];
    };
    if axes.is_empty() {
        return between(position, cells);
    }
    let stride: usize = axes.iter().map(|axis| axis.knots().len()).product();
    let at = |knot: usize| reduce(axes, rest, &cells[knot * stride..(knot + 1) * stride]);
    let lower = at(position.lower);
    let upper = if position.upper == position.lower { lower } else { at(position.upper) };
    mix(position, lower, upper)
}

fn between(position: &Position, row: &[Reading]) -> Reading {
    mix(position, row[position.lower], row[position.upper])
}

/// The reading at `position` between two readings.
fn mix(position: &Position, lower: Reading, upper: Reading) -> Reading {
    let worse = lower.confidence.max(upper.confidence);
    let nanos = lower.nanos + (upper.nanos - lower.nanos) * position.weight;
    if position.beyond_percent > 0 {
        let percent = position.beyond_percent.saturating_add(extrapolated_percent(worse));
        return Reading { nanos: nanos.max(upper.nanos), confidence: Confidence::Extrapolated { percent } };
    }
    if position.lower == position.upper {
        return lower;
    }
    Reading { nanos, confidence: worse.max(Confidence::Interpolated) }
}

/// How far `confidence` reaches beyond samples, in percent; zero if it does not.
pub(super) fn extrapolated_percent(confidence: Confidence) -> u32 {
    match confidence {
        Confidence::Extrapolated { percent } => percent,
        _ => 0,
    }
}

/// Collects the samples of a [`Table`].
#[derive(Clone, Debug)]
pub struct TableBuilder {
    axes: SmallVec<[Axis; 3]>,
    /// One after another, as many per sample as there are axes.
    coordinates: Vec<f64>,
    nanos: Vec<f64>,
}

impl TableBuilder {
    /// Adds a sample. A point that is sampled more than once counts with the median of its
    /// durations.
    ///
    /// # Errors
    /// If the coordinates are not one per axis, or a number is not what it should be.
    pub fn sample(&mut self, point: &[f64], nanos: f64) -> Result<(), TableError> {
        if point.len() != self.axes.len() {
            return Err(TableError::Arity { expected: self.axes.len(), found: point.len() });
        }
        if let Some((axis, &value)) =
            self.axes.iter().zip(point).find(|(_, value)| !(value.is_finite() && **value >= 0.0))
        {
            return Err(TableError::Coordinate { axis: axis.name().into(), value });
        }
        if !(nanos.is_finite() && nanos > 0.0) {
            return Err(TableError::Duration { nanos });
        }
        self.coordinates.extend_from_slice(point);
        self.nanos.push(nanos);
        Ok(())
    }

    /// The number of samples so far.
    pub fn len(&self) -> usize {
        self.nanos.len()
    }

    /// True if there are no samples yet.
    pub fn is_empty(&self) -> bool {
        self.nanos.is_empty()
    }

    /// The table of all samples. O(samples log samples + completed cells * knots).
    ///
    /// # Errors
    /// If there are no axes or samples, or if the lattice would be too large.
    pub fn build(self) -> Result<Table, TableError> {
        let Self { axes, coordinates, nanos } = self;
        if !(1..=MAX_AXES).contains(&axes.len()) {
            return Err(TableError::Axes { found: axes.len() });
        }
        if nanos.is_empty() {
            return Err(TableError::Empty);
        }
        let count = axes.len();
        let along = |axis: usize| coordinates.iter().skip(axis).step_by(count).copied();
        let axes: SmallVec<[Axis; 3]> =
            axes.into_iter().enumerate().map(|(index, axis)| axis.with_knots(along(index))).collect();
        let knots: Vec<_> = axes.iter().map(|axis| axis.knots().len()).collect();
        let cells = knots.iter().fold(1usize, |product, &count| product.saturating_mul(count));
        if cells > MAX_CELLS {
            return Err(TableError::TooLarge { cells, knots });
        }
        let mut placed: Vec<_> = coordinates
            .chunks_exact(count)
            .map(|point| {
                let knots = axes.iter().zip(point);
                knots.fold(0, |cell, (axis, &value)| cell * axis.knots().len() + axis.knot(value).unwrap_or(0))
            })
            .zip(nanos)
            .collect();
        placed.sort_by(|(a, x), (b, y)| a.cmp(b).then(x.total_cmp(y)));
        let mut measured = vec![f64::NAN; cells];
        let mut samples = 0;
        for repeats in placed.chunk_by(|(a, _), (b, _)| a == b) {
            samples += 1;
            let (cell, nanos) = repeats[repeats.len() / 2];
            let (_, other) = repeats[(repeats.len() - 1) / 2];
            measured[cell] = (nanos + other) * 0.5;
        }
        let cells = completion::complete(&axes, &measured);
        Ok(Table { axes, cells, samples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(samples: &[(f64, f64, f64)]) -> Table {
        let mut table = Table::builder([Axis::linear("x"), Axis::linear("y")]);
        samples.iter().for_each(|&(x, y, nanos)| table.sample(&[x, y], nanos).unwrap());
        table.build().unwrap()
    }

    #[test]
    fn a_sample_is_read_as_it_is_and_the_middle_is_the_mean() {
        let table = table(&[(1.0, 1.0, 10.0), (1.0, 3.0, 20.0), (5.0, 1.0, 30.0), (5.0, 3.0, 60.0)]);
        assert_eq!(table.read(&[5.0, 3.0]), Reading { nanos: 60.0, confidence: Confidence::Measured });
        assert_eq!(table.read(&[3.0, 2.0]), Reading { nanos: 30.0, confidence: Confidence::Interpolated });
        assert_eq!(table.read(&[3.0]), table.read(&[3.0, 1.0]));
    }

    #[test]
    fn beyond_the_end_the_last_line_goes_on_and_never_falls() {
        let rising = table(&[(1.0, 0.0, 10.0), (2.0, 0.0, 20.0)]);
        let reading = rising.read(&[4.0, 0.0]);
        assert_eq!(reading, Reading { nanos: 40.0, confidence: Confidence::Extrapolated { percent: 100 } });
        let falling = table(&[(1.0, 0.0, 10.0), (2.0, 0.0, 8.0)]);
        assert_eq!(falling.read(&[100.0, 0.0]).nanos, 8.0);
    }

    #[test]
    fn repeated_samples_count_with_their_median() {
        let table = table(&[(1.0, 1.0, 10.0), (1.0, 1.0, 90.0), (1.0, 1.0, 12.0)]);
        assert_eq!((table.read(&[1.0, 1.0]).nanos, table.samples()), (12.0, 1));
    }

    #[test]
    fn what_is_no_sample_is_refused() {
        let mut builder = Table::builder([Axis::linear("m")]);
        assert_eq!(builder.sample(&[1.0, 2.0], 1.0), Err(TableError::Arity { expected: 1, found: 2 }));
        assert_eq!(builder.sample(&[-1.0], 1.0), Err(TableError::Coordinate { axis: "m".into(), value: -1.0 }));
        assert_eq!(builder.sample(&[1.0], 0.0), Err(TableError::Duration { nanos: 0.0 }));
        assert!(matches!(builder.sample(&[1.0], f64::NAN), Err(TableError::Duration { .. })));
        assert_eq!(builder.build(), Err(TableError::Empty));
    }

    #[test]
    fn scattered_samples_do_not_fill_the_memory() {
        let mut builder = Table::builder([Axis::linear("x"), Axis::linear("y")]);
        (0..4096).for_each(|i| builder.sample(&[f64::from(i), f64::from(i * 7)], 1.0).unwrap());
        assert!(matches!(builder.build(), Err(TableError::TooLarge { cells: 16_777_216, .. })));
    }

    fn samples() -> impl Strategy<Value = Vec<(f64, f64, f64)>> {
        let knot = || (0u32..8).prop_map(|knot| f64::from(knot * knot));
        prop::collection::vec((knot(), knot(), (1u32..1_000_000).prop_map(f64::from)), 1..40)
    }

    proptest! {
        #[test]
        fn readings_are_positive_and_samples_are_kept(
            samples in samples(),
            point in prop::array::uniform2(0.0f64..1e6),
        ) {
            let table = table(&samples);
            let reading = table.read(&point);
            prop_assert!(reading.nanos.is_finite() && reading.nanos > 0.0, "{reading:?}");
            for &(x, y, _) in &samples {
                prop_assert_eq!(table.read(&[x, y]).confidence, Confidence::Measured);
            }
        }

        #[test]
        fn a_fixed_axis_changes_no_bit(
            samples in samples(),
            point in prop::array::uniform2(0.0f64..100.0),
        ) {
            let table = table(&samples);
            prop_assert_eq!(table.fix(point[1]).read(&point[..1]), table.read(&point));
        }

        #[test]
        fn what_is_linear_is_read_exactly_between_samples(
            slopes in prop::array::uniform3(1u32..1000),
            point in prop::array::uniform2(0u32..=48),
        ) {
            let [constant, a, b] = slopes.map(f64::from);
            let linear = |x: f64, y: f64| constant + a * x + b * y;
            let knots = [0.0, 1.0, 16.0, 48.0];
            let samples: Vec<_> = knots.iter().flat_map(|&x| knots.map(|y| (x, y, linear(x, y)))).collect();
            let [x, y] = point.map(f64::from);
            let reading = table(&samples).read(&[x, y]);
            prop_assert!((reading.nanos / linear(x, y) - 1.0).abs() < 1e-12);
        }
    }
}
