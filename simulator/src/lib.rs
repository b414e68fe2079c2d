//! What will happen: deterministic what-if simulation of a serving cluster.
//!
//! Together with `slicescheduler-gmg` this is a capacity planner: say what the cluster is, what
//! runs on it, and ask what would happen if some of it ran elsewhere. Answers are exact, not
//! sampled, and equal on every machine.
//!
//! ```
//! use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
//! use slicescheduler_gmg::dtype::DType;
//! use slicescheduler_gmg::graph::OpGraph;
//! use slicescheduler_gmg::id::{DeviceId, LaneId};
//! use slicescheduler_gmg::job::JobSpec;
//! use slicescheduler_gmg::plan::Action;
//! use slicescheduler_gmg::semantics::OpKind;
//! use slicescheduler_gmg::shape::{Binding, Shape, TOKENS};
//! use slicescheduler_gmg::{Container, Gmg, Model, Tenant};
//! use slicescheduler_simulator::{Horizon, Roofline, Timeline};
//!
//! let mut graph = OpGraph::builder("two operators");
//! let x = graph.input("x", DType::F16, Shape::matrix(TOKENS, 4096));
//! let weight = graph.weight("weight", DType::F16, Shape::matrix(4096, 4096));
//! let hidden = graph.activation("hidden", DType::F16, Shape::matrix(TOKENS, 4096));
//! let y = graph.output("y", DType::F16, Shape::matrix(TOKENS, 4096));
//! graph.op("project", OpKind::MatMul, &[x, weight], &[hidden]);
//! graph.op("softmax", OpKind::Softmax, &[hidden], &[y]);
//!
//! let cluster = Cluster::builder().node("a", |node| node.devices(2, DeviceSpec::h100_sxm())).build()?;
//! let mut gmg = Gmg::new(cluster);
//! let tenant = gmg.add_tenant(Tenant::best_effort("embed"))?;
//! let model = gmg.add_model(tenant, Model::new("tiny", graph.build()?.into()), Container::replicas([0, 1]))?;
//! let job = || JobSpec::of(model).bind(Binding::new().bind(TOKENS, 512));
//! let (first, second) = (gmg.submit(job())?, gmg.submit(job())?);
//!
//! let mut timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2));
//! let there = timeline.ask(&[Action::run(second, 0..2, LaneId::new(DeviceId(1), 0))])?;
//! println!("{} -> {}, peak there {}", timeline.finish(second), there.finish(second), there.peak(DeviceId(1)));
//! assert_eq!(there.finish(second), timeline.finish(first));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`calibration`] | learning from observed durations |
//! | [`collective`] | how long collectives take on a topology |
//! | [`cost`] | how long operators take: [`CostModel`], [`Roofline`], [`Measured`](cost::Measured), [`JobCost`] |
//! | [`allocator`] | what a host's memory allocator makes of requests; that of PyTorch, block by block |
//! | [`engine`] | lanes, links and memory over time, from scratch |
//! | [`growth`] | how far KV caches will grow: bounds and expectations |
//! | [`incremental`] | a fixed order per lane: schedules of millions of operators, what-if in microseconds |
//! | [`profile`] | measured durations: tables, interpolation, readers of profile files |
//! | [`interference`] | what operators that share a device do to each other |
//! | [`timeline`] | the kept forecast of a graph: [`Timeline`], which implements [`WhatIf`](slicescheduler_gmg::plan::WhatIf) |
//! | [`world`] | what really happens in a replay: durations, noise and output lengths that forecasts never see |

#![forbid(unsafe_code)]

pub mod allocator;
pub mod calibration;
pub mod collective;
pub mod cost;
pub mod engine;
pub mod growth;
pub mod incremental;
pub mod interference;
pub mod profile;
pub mod timeline;
pub mod world;

pub use cost::{CostModel, JobCost, Roofline};
pub use timeline::{Horizon, Outcome, Timeline};
