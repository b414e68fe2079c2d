//! A two-operator graph and a what-if question: would the second job be done earlier elsewhere?
use slicescheduler_gmg::{Container, Gmg, Model, Tenant, cluster::*, dtype::DType, graph::OpGraph, id::*};
use slicescheduler_gmg::{job::JobSpec, plan::Action, semantics::OpKind, shape::*};
use slicescheduler_simulator::{Horizon, Roofline, Timeline};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut graph = OpGraph::builder("two operators");
    let [x, weight] = [graph.input("x", DType::F16, [TOKENS.into(), Dim::fixed(4096)]), graph.weight("weight", DType::F16, [4096, 4096])];
    let [hidden, y] = [graph.activation("hidden", DType::F16, [TOKENS.into(), Dim::fixed(4096)]), graph.output("y", DType::F16, [TOKENS.into(), Dim::fixed(4096)])];
    graph.op("project", OpKind::MatMul, &[x, weight], &[hidden]);
    graph.op("softmax", OpKind::Softmax, &[hidden], &[y]);
    let mut gmg = Gmg::new(Cluster::builder().node("a", |node| node.devices(2, DeviceSpec::h100_sxm())).build()?);
    let tenant = gmg.add_tenant(Tenant::best_effort("embed"))?;
    let model = gmg.add_model(tenant, Model::new("tiny", graph.build()?.into()), Container::replicas([0, 1]))?;
    let [_, job] = [(); 2].map(|()| gmg.submit(JobSpec::of(model).bind(Binding::new().bind(TOKENS, 8192))));
    let (job, mut timeline) = (job?, Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2)));
    let there = timeline.ask(&[Action::run(job, 0..2, LaneId::new(DeviceId(1), 0))])?;
    println!("{} -> {}, peak there {}", timeline.finish(job), there.finish(job), there.peak(DeviceId(1)));
    Ok(())
}
