//! Intent and forecast: what the crates of the family say to each other.
//!
//! The traits here are *ports*: one crate calls them, another implements them, and neither depends
//! on the other. What runs is behind [`World`], what would run is behind [`WhatIf`], what a tenant
//! will submit next is behind [`Continuation`].

mod action;
mod event;
mod forecast;
mod ports;

pub use action::{Accepted, Action, BatchLimits, Command, Dropped, Fate, Launch, Plan, Rank, Source, Work};
pub use event::{DeviceReport, Ended, Event, Failure};
pub use forecast::{Forecast, MemoryForecast, RunForecast, Shortage, Slice};
pub use ports::{Clock, Continuation, Observer, Question, WhatIf, WhatIfError, World, WorldError};
