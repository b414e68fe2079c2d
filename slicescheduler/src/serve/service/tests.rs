//! Faults that CPU lanes do not have, in a world around them.

use std::task::Poll;

use slicescheduler_gmg::id::{DeviceId, LaneId, TenantId};
use slicescheduler_gmg::tenant::Tenant;
use slicescheduler_scheduler::StaticContainers;

use super::*;
use crate::model::Llama;
use crate::serve::mailbox::Mailbox;
use crate::serve::{Request, SliceScheduler};

/// CPU lanes, of which a device goes when it is first given work.
struct Breaking {
    lanes: CpuWorld,
    device: Option<DeviceId>,
    /// The device has work, and nobody was told that it is gone.
    hangs: bool,
    /// Everything goes with the next command.
    broken: bool,
}

impl World for Breaking {
    fn enqueue(&mut self, command: &Command, view: View<'_>) -> Result<(), WorldError> {
        match command {
            _ if self.broken => Err(WorldError::NoSuchLane(LaneId::new(DeviceId(0), 0))),
            Command::Launch(launch) if Some(launch.lane.device) == self.device => {
                self.hangs = true;
                Ok(())
            }
            _ => self.lanes.enqueue(command, view),
        }
    }

    fn poll(&mut self, until: Nanos, events: &mut Vec<Event>) -> Result<Nanos, WorldError> {
        let Some(device) = self.device.filter(|_| self.hangs) else { return self.lanes.poll(until, events) };
        self.hangs = false;
        let at = self.lanes.poll(Nanos::ZERO, events)?;
        events.push(Event::DeviceLost { device, at });
        Ok(at)
    }

    fn is_idle(&self) -> bool {
        !self.hangs && self.lanes.is_idle()
    }
}

impl TokenWorld for Breaking {
    fn enter(&mut self, request: RequestId, asked: &Request) -> Result<(), WorldError> {
        self.lanes.enter(request, asked)
    }

    fn vector(&self, request: RequestId) -> Option<Arc<[f32]>> {
        self.lanes.vector(request)
    }

    fn leave(&mut self, request: RequestId) {
        self.lanes.leave(request);
    }
}

/// `chat` on devices 0 and 1, `batch` on device 2.
fn service(device: Option<u32>, broken: bool) -> Service<Breaking> {
    let builder = SliceScheduler::builder()
        .devices(3)
        .tenant_on(Tenant::latency_sensitive("chat"), Llama::tiny(1), [0, 1])
        .tenant_on(Tenant::best_effort("batch"), Llama::tiny(2), [2])
        .policy(StaticContainers::default());
    let device = device.map(DeviceId);
    builder.service(|lanes| Breaking { lanes, device, hangs: false, broken }).unwrap().0
}

fn submit(service: &Service<Breaking>, tenant: u32) -> Arc<Mailbox<Token>> {
    let mailbox = Arc::new(Mailbox::default());
    let request = Request::prompt_tokens(&[3, 1, 4, 1, 5]).max_tokens(6);
    let recipient = Recipient::Tokens(mailbox.clone());
    let submission = Submission { tenant: TenantId(tenant), arrival: Nanos::ZERO, request, recipient };
    service.inbox().submit(submission).unwrap();
    mailbox
}

/// Tokens and the error, if there is one, of an answer that has ended.
fn answer(mailbox: &Mailbox<Token>) -> (Vec<u32>, Option<RequestError>) {
    let mut tokens = Vec::new();
    loop {
        match mailbox.try_next() {
            Poll::Ready(Some(Ok(token))) => tokens.push(token.id),
            Poll::Ready(Some(Err(error))) => return (tokens, Some(error)),
            Poll::Ready(None) => return (tokens, None),
            Poll::Pending => panic!("it has not ended, after {tokens:?}"),
        }
    }
}

fn serve(service: &mut Service<Breaking>, tenants: &[u32]) -> Vec<(Vec<u32>, Option<RequestError>)> {
    let answers: Vec<_> = tenants.iter().map(|&tenant| submit(service, tenant)).collect();
    while service.inbox().under_way() > 0 {
        service.step(service.clock().now() + LONG).unwrap();
    }
    answers.iter().map(|mailbox| answer(mailbox)).collect()
}

#[test]
fn what_was_on_a_lost_device_is_computed_on_another_of_the_tenant() {
    let tenants = [0, 0, 1, 0];
    let expected = serve(&mut service(None, false), &tenants);
    assert!(expected.iter().all(|(tokens, error)| tokens.len() == 6 && error.is_none()));
    let mut service = service(Some(0), false);
    assert_eq!(serve(&mut service, &tenants), expected);
    let lost = service.status().devices.into_iter().map(|device| device.lost);
    assert_eq!(lost.collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(serve(&mut service, &tenants), expected, "and so is what comes later");
}

#[test]
fn a_tenant_without_devices_gets_errors_and_the_others_their_answers() {
    let expected = serve(&mut service(None, false), &[0]).remove(0);
    let mut service = service(Some(2), false);
    for _ in 0..2 {
        let answers = serve(&mut service, &[1, 0, 1]);
        assert_eq!(answers[0], (vec![], Some(RequestError::NoDevice)));
        assert_eq!(answers[1], expected);
        assert_eq!(answers[2], (vec![], Some(RequestError::NoDevice)));
    }
}

#[test]
fn a_world_that_breaks_ends_everything_with_its_reason() {
    let mut service = service(None, true);
    let answers = [submit(&service, 0), submit(&service, 1)];
    let inbox = service.inbox().clone();
    let error = service.step(Nanos::ZERO).unwrap_err();
    drop(service);
    let reason = RequestError::Stopped { reason: error.to_string().into() };
    assert_eq!(reason.to_string(), "the scheduler stopped: this world has no lane 0.0");
    for mailbox in answers {
        assert_eq!(answer(&mailbox), (vec![], Some(reason.clone())));
    }
    assert_eq!(inbox.closed(), Some(reason));
}
