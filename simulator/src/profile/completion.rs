//! Cells that were not measured.
//!
//! A hole between measured cells is estimated along every line of the lattice that passes through
//! it: from its nearest measured neighbours on both sides, from the second nearest and from the
//! third, linearly. Such a line estimate is also compared with what was measured one cell beside
//! the hole on every other axis, and the ratio found there corrects it; this carries steps such as
//! those of tiles, which repeat from line to line. The median of all these estimates is taken:
//! kernels change from cell to cell, and single lines are often far off.
//!
//! The same rule, applied to measured cells as if they were holes, gives the *leave-one-out* error
//! of a table. What a reading between knots errs by is larger, because nothing was measured at its
//! coordinate at all; [`Table::between_knots`] gives that.

use smallvec::SmallVec;

use super::axis::Axis;
use super::table::{MAX_AXES, Reading, Table, extrapolated_percent};
use crate::cost::Confidence;

/// How many neighbours on each side of a hole give a line estimate.
const STRIDES: usize = 3;

/// How far estimates are off, relative to what was measured: 0.03 is 3 %.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorSummary {
    /// The number of estimates.
    pub count: usize,
    /// The mean of the absolute errors.
    pub mean: f64,
    /// The median of the absolute errors.
    pub median: f64,
    /// Nine in ten errors are at most this.
    pub p90: f64,
    /// The mean of the signed errors: above zero if estimates are too long.
    pub bias: f64,
}

impl ErrorSummary {
    /// The summary of relative errors with their sign.
    pub fn of(signed: impl IntoIterator<Item = f64>) -> Self {
        let signed: Vec<_> = signed.into_iter().filter(|error| error.is_finite()).collect();
        let mut absolute: Vec<_> = signed.iter().map(|error| error.abs()).collect();
        absolute.sort_by(f64::total_cmp);
        let Some(last) = absolute.len().checked_sub(1) else { return Self::default() };
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        Self {
            count: absolute.len(),
            mean: mean(&absolute),
            median: absolute[last / 2],
            p90: absolute[last * 9 / 10],
            bias: mean(&signed),
        }
    }
}

impl Table {
    /// The errors of estimating every measured cell from the others, as far as it lies between
    /// others: signed, relative, in the order of the cells. O(samples * axes^2 * knots).
    pub fn leave_one_out(&self) -> Vec<f64> {
        let measured = self.measured();
        let lattice = Lattice::new(self.axes(), &measured);
        let mut scratch = Vec::new();
        let cells = (0..measured.len()).filter(|&cell| !measured[cell].is_nan());
        cells.filter_map(|cell| Some(lattice.inner(cell, &mut scratch)? / measured[cell] - 1.0)).collect()
    }

    /// The errors of readings half-way between knots of axis `axis`: those of estimating measured
    /// cells from their neighbours on that axis alone.
    pub fn between_knots(&self, axis: usize) -> Vec<f64> {
        let measured = self.measured();
        let lattice = Lattice::new(self.axes(), &measured);
        let cells = (0..measured.len()).filter(|&cell| axis < self.axes().len() && !measured[cell].is_nan());
        cells.filter_map(|cell| Some(lattice.line(cell, axis, 1)? / measured[cell] - 1.0)).collect()
    }

    /// The points that were measured, with their durations in nanoseconds.
    pub fn measured_points(&self) -> impl Iterator<Item = (SmallVec<[f64; MAX_AXES]>, f64)> + '_ {
        let measured = self.cells().iter().enumerate().filter(|(_, cell)| cell.confidence == Confidence::Measured);
        measured.map(|(mut cell, reading)| {
            let mut point: SmallVec<[f64; MAX_AXES]> = SmallVec::new();
            for axis in self.axes().iter().rev() {
                point.push(axis.knots()[cell % axis.knots().len()]);
                cell /= axis.knots().len();
            }
            point.reverse();
            (point, reading.nanos)
        })
    }

    /// By cell; NaN where nothing was measured.
    fn measured(&self) -> Vec<f64> {
        let measured = |cell: &Reading| if cell.confidence == Confidence::Measured { cell.nanos } else { f64::NAN };
        self.cells().iter().map(measured).collect()
    }
}

/// All cells, given the measured ones (the others are NaN; at least one is measured).
pub(super) fn complete(axes: &[Axis], measured: &[f64]) -> Box<[Reading]> {
    let none = Reading { nanos: f64::NAN, confidence: Confidence::Measured };
    let mut cells: Vec<_> = measured.iter().map(|&nanos| Reading { nanos, ..none }).collect();
    let mut scratch = Vec::new();
    let lattice = Lattice::new(axes, measured);
    for (cell, reading) in cells.iter_mut().enumerate().filter(|(_, reading)| reading.nanos.is_nan()) {
        if let Some(nanos) = lattice.inner(cell, &mut scratch) {
            *reading = Reading { nanos, confidence: Confidence::Interpolated };
        }
    }
    // What no line has on both sides is reached from one side, round by round: a round sees the
    // cells of the rounds before, so that the order of cells does not matter.
    while cells.iter().any(|cell| cell.nanos.is_nan()) {
        let known: Vec<_> = cells.iter().map(|cell| cell.nanos).collect();
        let lattice = Lattice::new(axes, &known);
        let reached: Vec<_> = (0..cells.len())
            .filter(|&cell| known[cell].is_nan())
            .filter_map(|cell| Some((cell, lattice.outer(cell, &cells)?)))
            .collect();
        if reached.is_empty() {
            break;
        }
        reached.into_iter().for_each(|(cell, reading)| cells[cell] = reading);
    }
    cells.into()
}

/// Known durations on the lattice of some axes; NaN where nothing is known.
struct Lattice<'a> {
    axes: &'a [Axis],
    strides: SmallVec<[usize; MAX_AXES]>,
    nanos: &'a [f64],
}

impl<'a> Lattice<'a> {
    fn new(axes: &'a [Axis], nanos: &'a [f64]) -> Self {
        let mut strides: SmallVec<[usize; MAX_AXES]> = axes.iter().map(|_| 1).collect();
        for axis in (1..axes.len()).rev() {
            strides[axis - 1] = strides[axis] * axes[axis].knots().len();
        }
        Self { axes, strides, nanos }
    }

    fn knot(&self, cell: usize, axis: usize) -> usize {
        cell / self.strides[axis] % self.axes[axis].knots().len()
    }

    /// The known cells of the line through `cell` along `axis`, as pairs of knot and duration,
    /// going away from `cell`, before it or after it.
    fn walk(&self, cell: usize, axis: usize, before: bool) -> impl Iterator<Item = (f64, f64)> + '_ {
        let (here, stride) = (self.knot(cell, axis), self.strides[axis]);
        let knots = self.axes[axis].knots();
        let steps = if before { here } else { knots.len() - 1 - here };
        (1..=steps)
            .map(move |step| match before {
                true => (knots[here - step], self.nanos[cell - step * stride]),
                false => (knots[here + step], self.nanos[cell + step * stride]),
            })
            .filter(|(_, nanos)| !nanos.is_nan())
    }

    /// The estimate for `cell` from its `nth` known neighbours on both sides along `axis`,
    /// counting from 1.
    fn line(&self, cell: usize, axis: usize, nth: usize) -> Option<f64> {
        let (low, below) = self.walk(cell, axis, true).nth(nth - 1)?;
        let (high, above) = self.walk(cell, axis, false).nth(nth - 1)?;
        let here = self.axes[axis].knots()[self.knot(cell, axis)];
        let weight = (here - low) / (high - low);
        Some(below + (above - below) * weight)
    }

    /// The cells beside `cell` on `axis`, if they are known.
    fn beside(&self, cell: usize, axis: usize) -> impl Iterator<Item = usize> + '_ {
        let (here, stride) = (self.knot(cell, axis), self.strides[axis]);
        let before = (here > 0).then(|| cell - stride);
        let after = (here + 1 < self.axes[axis].knots().len()).then(|| cell + stride);
        before.into_iter().chain(after).filter(|&cell| !self.nanos[cell].is_nan())
    }

    /// The estimate for `cell` from known cells on both sides of it.
    fn inner(&self, cell: usize, estimates: &mut Vec<f64>) -> Option<f64> {
        estimates.clear();
        for axis in 0..self.axes.len() {
            for nth in 1..=STRIDES {
                let Some(line) = self.line(cell, axis, nth) else { break };
                estimates.push(line);
                for other in (0..self.axes.len()).filter(|&other| other != axis) {
                    for beside in self.beside(cell, other) {
                        estimates.extend(self.line(beside, axis, nth).map(|there| line * (self.nanos[beside] / there)));
                    }
                }
            }
        }
        estimates.sort_by(f64::total_cmp);
        let middle = estimates.len().checked_sub(1)? / 2;
        let upper = estimates[estimates.len() / 2];
        Some((estimates[middle] + upper) * 0.5)
    }

    /// The estimate for `cell` from known cells on one side of it, along the axis on which the
    /// least is extrapolated. A line with a single known cell has no slope of its own and takes
    /// that of the nearest parallel line.
    fn outer(&self, cell: usize, readings: &[Reading]) -> Option<Reading> {
        let mut best: Option<Reading> = None;
        for (axis, knots) in self.axes.iter().enumerate() {
            let here = self.knot(cell, axis);
            let first = cell - here * self.strides[axis];
            let on_line = (0..knots.knots().len()).map(|knot| first + knot * self.strides[axis]);
            let known: Vec<_> = on_line.zip(knots.knots()).filter(|(cell, _)| !self.nanos[*cell].is_nan()).collect();
            if known.is_empty() {
                continue;
            }
            let line = knots.clone().with_knots(known.iter().map(|(_, knot)| **knot));
            let position = line.locate(knots.knots()[here]);
            let (lower, upper) = (readings[known[position.lower].0], readings[known[position.upper].0]);
            let nanos = match *known {
                [(only, _)] => upper.nanos * self.parallel(cell, only, axis).unwrap_or(1.0),
                _ => lower.nanos + (upper.nanos - lower.nanos) * position.weight,
            };
            let reach = extrapolated_percent(lower.confidence.max(upper.confidence));
            let percent = position.beyond_percent.max(1).saturating_add(reach);
            let reading = Reading { nanos: nanos.max(upper.nanos), confidence: Confidence::Extrapolated { percent } };
            if best.is_none_or(|best| reading.confidence < best.confidence) {
                best = Some(reading);
            }
        }
        best
    }

    /// The ratio of the cells beside `cell` and `known`, which lie on one line along `axis`: on
    /// the nearest parallel line on which both are known.
    fn parallel(&self, cell: usize, known: usize, axis: usize) -> Option<f64> {
        let mut nearest: Option<(usize, f64)> = None;
        for other in (0..self.axes.len()).filter(|&other| other != axis) {
            let (here, stride) = (self.knot(cell, other), self.strides[other]);
            for knot in 0..self.axes[other].knots().len() {
                let beside = |cell: usize| self.nanos[cell - here * stride + knot * stride];
                let ratio = beside(cell) / beside(known);
                let distance = knot.abs_diff(here);
                if !ratio.is_nan() && nearest.is_none_or(|(least, _)| distance < least) {
                    nearest = Some((distance, ratio));
                }
            }
        }
        nearest.map(|(_, ratio)| ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `x * 10 + y` on a lattice of three by three knots without the cells of `holes`.
    fn plane(holes: &[(u32, u32)]) -> Table {
        let mut table = Table::builder([Axis::linear("x"), Axis::linear("y")]);
        for (x, y) in (1..=3).flat_map(|x| (1..=3).map(move |y| (x, y))).filter(|point| !holes.contains(point)) {
            table.sample(&[f64::from(x), f64::from(y)], f64::from(x * 10 + y)).unwrap();
        }
        table.build().unwrap()
    }

    #[test]
    fn a_hole_is_filled_from_both_sides() {
        let reading = plane(&[(2, 2)]).read(&[2.0, 2.0]);
        assert_eq!(reading, Reading { nanos: 22.0, confidence: Confidence::Interpolated });
    }

    #[test]
    fn a_missing_corner_is_extrapolated_along_the_nearer_axis() {
        let reading = plane(&[(3, 3)]).read(&[3.0, 3.0]);
        assert_eq!(reading, Reading { nanos: 33.0, confidence: Confidence::Extrapolated { percent: 50 } });
    }

    #[test]
    fn a_line_with_one_cell_takes_the_slope_of_the_parallel_one() {
        let table = plane(&[(2, 2), (2, 3), (3, 2), (3, 3)]);
        assert_eq!(table.read(&[3.0, 3.0]).nanos, 31.0 * (13.0 / 11.0));
        assert!(table.read(&[3.0, 3.0]).confidence > table.read(&[3.0, 1.0]).confidence);
    }

    /// (1, 2, 3) shares no line with a sample of the diagonal.
    #[test]
    fn what_no_line_reaches_is_reached_in_the_second_round() {
        let mut table = Table::builder(["x", "y", "z"].map(Axis::linear));
        [1.0, 2.0, 3.0].iter().for_each(|&at| table.sample(&[at; 3], 10.0 * at).unwrap());
        let table = table.build().unwrap();
        assert!(table.cells().iter().all(|cell| cell.nanos > 0.0));
        let percent = |x, y, z| extrapolated_percent(table.read(&[x, y, z]).confidence);
        assert!(percent(1.0, 2.0, 3.0) > percent(2.0, 2.0, 3.0) && percent(2.0, 2.0, 3.0) > 0);
    }

    /// Steps at odd columns, as tiles make them, repeat on every row: a row that lacks one column
    /// learns the step from the others. Only the four cells one step from a corner on the first
    /// and the last row have just one line estimate, 150 instead of 100, and just one correction.
    #[test]
    fn steps_that_repeat_from_line_to_line_are_found() {
        let mut table = Table::builder([Axis::linear("x"), Axis::linear("y")]);
        let step = |x: u32, y: u32| f64::from(x) * if y.is_multiple_of(2) { 100.0 } else { 150.0 };
        for (x, y) in (1..=7).flat_map(|x| (1..=7).map(move |y| (x, y))) {
            table.sample(&[f64::from(x), f64::from(y)], step(x, y)).unwrap();
        }
        let table = table.build().unwrap();
        let errors = ErrorSummary::of(table.leave_one_out());
        assert!(errors.count == 45 && (errors.mean - 4.0 * 0.25 / 45.0).abs() < 1e-9, "{errors:?}");
        let between = ErrorSummary::of(table.between_knots(1));
        assert!(between.mean > 0.3, "{between:?}");
    }

    /// 1, 2, 4 at 1, 2, 3: leaving out the middle gives 2.5, which is 25 % too long.
    #[test]
    fn one_line_has_the_error_of_its_middle() {
        let mut table = Table::builder([Axis::linear("m")]);
        [(1.0, 1.0), (2.0, 2.0), (3.0, 4.0)].iter().for_each(|&(m, nanos)| table.sample(&[m], nanos).unwrap());
        let table = table.build().unwrap();
        assert_eq!(table.leave_one_out(), [0.25]);
        let summary = ErrorSummary::of(table.leave_one_out());
        assert_eq!((summary.count, summary.mean, summary.bias), (1, 0.25, 0.25));
    }
}
