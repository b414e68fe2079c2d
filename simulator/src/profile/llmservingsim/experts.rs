//! Blocks of experts.

use std::path::Path;

use super::{Judge, nanos, number, refuse};
use crate::profile::{Axis, Columns, ProfileError, Reading, Table, TableError};

/// Times of a block of experts on one rank, by tokens that reach it and experts that they activate there.
#[derive(Clone, Debug)]
pub struct ExpertTable {
    /// By degree of expert parallelism, ascending; the degree is 1 where the file does not say.
    by_degree: Vec<(u32, Table)>,
}

impl ExpertTable {
    pub(super) fn read(file: &Path, judge: &Judge<'_>) -> Result<Self, ProfileError> {
        let columns = Columns::read_csv(file)?;
        let (tokens, activated) = (columns.column("tokens")?, columns.column("activated_experts")?);
        let time = columns.column("time_us")?;
        let degree = if columns.has("ep") { Some(columns.column("ep")?) } else { None };
        let mut builders = std::collections::BTreeMap::new();
        for row in 0..columns.rows() {
            let degree = degree.map_or(Ok(1), |column| column.count(row))?;
            let point = [number(tokens, row)?, number(activated, row)?];
            let nanos = nanos(time, row)?;
            judge.experts(point[1], nanos, &time.place(row))?;
            let axes = || [Axis::linear("tokens"), Axis::linear("activated_experts")];
            let builder = builders.entry(degree).or_insert_with(|| Table::builder(axes()));
            builder.sample(&point, nanos).map_err(|source| refuse(&columns, "a row", source))?;
        }
        if builders.is_empty() {
            return Err(refuse(&columns, "its rows", TableError::Empty));
        }
        let mut by_degree = Vec::new();
        for (degree, builder) in builders {
            let table = builder.build().map_err(|source| refuse(&columns, &format!("ep {degree}"), source))?;
            by_degree.push((degree, table));
        }
        Ok(Self { by_degree })
    }

    /// The time of `tokens` tokens on one of `degree` ranks, from the measured degree that is nearest. Which experts a
    /// token takes is not known: it takes `per_token` of `experts` at random, so `tokens` of them activate
    /// `experts * (1 - (1 - per_token/experts)^tokens)` on average.
    pub fn read_at(&self, tokens: f64, experts: u32, per_token: u32, degree: u32) -> Option<Reading> {
        let (_, table) = self.by_degree.iter().min_by_key(|(measured, _)| measured.abs_diff(degree.max(1)))?;
        let experts = f64::from(experts.max(1));
        let missed = power(1.0 - (f64::from(per_token) / experts).min(1.0), tokens.max(0.0) as u32);
        let activated = experts * (1.0 - missed) / f64::from(degree.max(1));
        Some(table.read(&[tokens, activated]))
    }
}

fn power(base: f64, exponent: u32) -> f64 {
    let (mut base, mut exponent, mut product) = (base, exponent, 1.0);
    while exponent > 0 {
        if exponent % 2 == 1 {
            product *= base;
        }
        base *= base;
        exponent /= 2;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::power;

    #[test]
    fn powers_are_products() {
        assert_eq!(power(0.5, 10), 1.0 / 1024.0);
        assert_eq!((power(0.3, 0), power(0.0, 3)), (1.0, 0.0));
    }
}
