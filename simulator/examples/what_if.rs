//! A two-operator graph and a what-if question: would the second job be done earlier elsewhere?
use slicescheduler_gmg::{Container, Gmg, Model, Tenant, cluster::*, dtype::DType::F16, graph::OpGraph, id::*};
use slicescheduler_gmg::{job::JobSpec, plan::Action, semantics::OpKind, shape::*};
use slicescheduler_simulator::{Horizon, Roofline, Timeline};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut graph, rows) = (OpGraph::builder("two operators"), Shape::matrix(TOKENS, 4096));
    let (x, weight) = (graph.input("x", F16, rows.clone()), graph.weight("weight", F16, [4096, 4096]));
    let (hidden, y) = (graph.activation("hidden", F16, rows.clone()), graph.output("y", F16, rows));
    graph.op("project", OpKind::MatMul, &[x, weight], &[hidden]);
    graph.op("softmax", OpKind::Softmax, &[hidden], &[y]);
    let mut gmg = Gmg::new(Cluster::builder().node("a", |node| node.devices(2, DeviceSpec::h100_sxm())).build()?);
    let tenant = gmg.add_tenant(Tenant::best_effort("embed"))?;
    let model = gmg.add_model(tenant, Model::new("tiny", graph.build()?.into()), Container::replicas([0, 1]))?;
    let spec = JobSpec::of(model).bind(Binding::new().bind(TOKENS, 8192));
    let (_, job) = (gmg.submit(spec.clone())?, gmg.submit(spec)?);
    let mut timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2));
    let there = timeline.ask(&[Action::run(job, 0..2, LaneId::new(DeviceId(1), 0))])?;
    println!("{} -> {}, peak there {}", timeline.finish(job), there.finish(job), there.peak(DeviceId(1)));
    Ok(())
}
