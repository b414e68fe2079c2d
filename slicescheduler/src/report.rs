//! What a replay found: figures, timelines, and the files that show them.
//!
//! | file | made by | for |
//! |---|---|---|
//! | `summary.json` | [`Summary`] | programs |
//! | `report.html` | [`html`] | people: one file without references, figures and timelines |
//! | `timeline.json` | [`perfetto`] | the Perfetto viewer (Chrome trace format) |
//! | the terminal | [`table`] | people in a hurry |

pub mod html;
pub mod perfetto;
pub mod table;

mod figure;
mod late;
mod record;
mod summary;
mod whole;

pub use late::LateRequest;
pub use record::{DeviceLabel, MemorySample, RunRecord, SecondUse, SliceBucket, Span, SpanKind, TenantLabel};
pub use summary::{
    CoverageFigures, DecisionFigures, LatencyFigures, PolicySummary, PredictionFigures, PrefixFigures, Summary,
    TenantSummary, USEFUL_SCALING,
};
pub use whole::write_whole;
