//! Whose turn it is, where tenants take turns.

use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::{GmgView, View};

use crate::baseline::Parameter;
use crate::placing::is_latency;

/// For rules that know no classes.
pub(super) const BEST_EFFORT_LAST: Parameter = Parameter {
    name: "best_effort_last",
    what: "1: best-effort tenants have a turn only where no latency-sensitive one has work; 0: all take turns alike",
    default: 1,
    least: 0,
    most: 1,
    grid: &[0, 1],
};

/// The tenants in the order of their turns, beginning after `last`: all of them, or with `best_effort_last` in
/// two groups, those with due times first.
pub(super) fn groups(
    view: View<'_>,
    last: Option<TenantId>,
    best_effort_last: bool,
) -> impl Iterator<Item = impl Iterator<Item = TenantId> + Clone + use<'_>> + use<'_> {
    let tenants = view.tenants().len() as u32;
    let first = last.map_or(0, |last| last.0.wrapping_add(1));
    let classes: &[Option<bool>] = if best_effort_last { &[Some(true), Some(false)] } else { &[None] };
    classes.iter().map(move |class| {
        let around = (0..tenants).map(move |turn| TenantId((first + turn) % tenants));
        around.filter(move |&tenant| class.is_none_or(|latency| is_latency(view, tenant) == latency))
    })
}
