//! Who had how much of the devices: what a tenant lent, borrowed and may borrow, the minimum rate of best-effort
//! owners, and whose turn it is among best-effort tenants.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, JobId, TenantId};
use slicescheduler_gmg::units::Nanos;
use smallvec::SmallVec;

use crate::placing::is_latency;
use crate::policy::Context;
use crate::slice_fill::SliceFill;
use crate::slice_fill::agenda::tenants_on;

/// Over which time a best-effort owner has its minimum rate.
const WINDOW: Nanos = Nanos::secs(10);

/// An owner that has had work for less than this is not behind yet.
const PATIENCE: Nanos = Nanos::secs(1);

/// How much a tenant without work for a while may be behind the others when it has work again.
const CREDIT: Nanos = Nanos::secs(1);

/// Lane time of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LendingAccount {
    /// On its own devices.
    pub own: Nanos,
    /// On devices of others.
    pub borrowed: Nanos,
    /// Of others on its devices.
    pub lent: Nanos,
    /// All of its time, divided by its weight, raised to that of the others when it had no work: the tenant
    /// that has least is next.
    turn: Nanos,
}

/// What a latency-sensitive tenant may still borrow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    /// Nanoseconds; negative after a loan that took longer than what was left.
    left: i64,
    /// When it was last filled.
    at: Nanos,
}

/// Lane time of an owner over the last [`WINDOW`], in two halves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnerRate {
    half: u64,
    now: Nanos,
    before: Nanos,
    /// Since when the owner has had work without a break.
    since: Option<Nanos>,
}

impl OwnerRate {
    fn turn_to(&mut self, at: Nanos) {
        let half = at.get() / WINDOW.scale(1, 2).get();
        match half - self.half.min(half) {
            0 => {}
            1 => (self.before, self.now) = (self.now, Nanos::ZERO),
            _ => (self.before, self.now) = (Nanos::ZERO, Nanos::ZERO),
        }
        self.half = half;
    }

    fn ran(&mut self, at: Nanos, time: Nanos) {
        self.turn_to(at);
        self.now += time;
    }

    /// The owner has work now, or not.
    pub(super) fn has_work(&mut self, at: Nanos, work: bool) {
        match (work, self.since) {
            (true, None) => self.since = Some(at),
            (false, Some(_)) => self.since = None,
            _ => {}
        }
    }

    /// True if the owner had less than `percent` of the time since it has had work, looking back over the
    /// window at most.
    pub(super) fn is_behind(&self, at: Nanos, percent: u64) -> bool {
        let mut rate = *self;
        rate.turn_to(at);
        let Some(since) = rate.since else { return false };
        // The window begins with the half before this one.
        let begin = WINDOW.scale(rate.half.saturating_sub(1), 2);
        let span = at - since.max(begin);
        span >= PATIENCE && rate.now + rate.before < span.scale(percent, 100)
    }
}

impl SliceFill {
    /// What every tenant lent and borrowed so far, by id.
    pub fn accounts(&self) -> &[LendingAccount] {
        &self.shares
    }

    /// Charges lane time to a latency-sensitive tenant that ran on somebody else's device.
    pub(super) fn charge(&mut self, context: &Context<'_>, job: JobId, device: DeviceId, time: Nanos) {
        let model = context.view.job(job).and_then(|job| context.view.model(job.spec.model));
        let Some(tenant) = model.map(|model| model.tenant()) else { return };
        self.count(context, tenant, device, time);
        if is_latency(context.view, tenant) && context.view.owner(device) != Some(tenant) {
            if let Some(state) = self.devices.get_mut(device.index()) {
                state.space.guest_at = Some(context.now);
            }
            let account = self.account(context, tenant);
            account.left = account.left.saturating_sub_unsigned(time.get());
        }
    }

    /// The account of a tenant, filled up to now.
    fn account(&mut self, context: &Context<'_>, tenant: TenantId) -> &mut Account {
        let own = self.places.homes(tenant).len() as u64;
        let most = i64::try_from(self.options.borrow_burst.times(own).get()).unwrap_or(i64::MAX);
        let index = tenant.index();
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Account { left: i64::MAX, at: Nanos::ZERO });
        }
        let account = &mut self.accounts[index];
        let gained = (context.now - account.at).scale(self.options.borrow_percent * own, 100);
        *account = Account { left: account.left.saturating_add_unsigned(gained.get()).min(most), at: context.now };
        account
    }

    /// True if the tenant may borrow time on others' devices: it has some left, and it is in a burst.
    /// Whoever is further behind than that is saturated, and what it borrowed would save nothing.
    pub(super) fn may_borrow(&mut self, context: &Context<'_>, tenant: TenantId) -> bool {
        let ttft = context.view.tenant(tenant).and_then(|tenant| tenant.slo).map_or(Nanos::ZERO, |slo| slo.ttft);
        let behind = context.demand.waiting(tenant).map_or(Nanos::ZERO, |waiting| context.now - waiting.first_due);
        self.options.overflow
            && behind <= ttft.times(self.options.burst_ttfts)
            && self.account(context, tenant).left > 0
    }

    /// Counts lane time of `tenant` on `device`.
    fn count(&mut self, context: &Context<'_>, tenant: TenantId, device: DeviceId, time: Nanos) {
        let (view, owner) = (context.view, context.view.owner(device));
        if self.shares.len() < view.tenants().len() {
            self.shares.resize(view.tenants().len(), LendingAccount::default());
        }
        let weight = view.tenant(tenant).map_or(1, |tenant| u64::from(tenant.weight.max(1)));
        let Some(account) = self.shares.get_mut(tenant.index()) else { return };
        account.turn = account.turn.max(self.least_turn) + time.scale(1, weight);
        if owner == Some(tenant) {
            account.own += time;
            if let Some(state) = self.devices.get_mut(device.index()) {
                state.owner_rate.ran(context.now, time);
            }
        } else {
            account.borrowed += time;
            if let Some(lender) = owner.and_then(|owner| self.shares.get_mut(owner.index())) {
                lender.lent += time;
            }
        }
    }

    /// The best-effort guests with weights on a device, whoever had least for its weight first.
    pub(super) fn guests_in_turn(&self, context: &Context<'_>, device: DeviceId) -> SmallVec<[TenantId; 8]> {
        let owner = context.view.owner(device);
        let mut guests = tenants_on(context.view, device);
        guests.retain(|tenant| !is_latency(context.view, *tenant) && owner != Some(*tenant));
        guests.sort_by_key(|tenant| (self.turn_of(*tenant), *tenant));
        guests
    }

    pub(super) fn turn_of(&self, tenant: TenantId) -> Nanos {
        self.shares.get(tenant.index()).map_or(Nanos::ZERO, |account| account.turn).max(self.least_turn)
    }

    /// A best-effort tenant had its turn: whoever had no work meanwhile saves little of it up.
    pub(super) fn took_turn(&mut self, tenant: TenantId) {
        self.least_turn = self.least_turn.max(self.turn_of(tenant) - CREDIT);
    }

    /// Notes whether the best-effort owner of a device has work.
    pub(super) fn look_at_owner(&mut self, context: &Context<'_>, device: DeviceId) {
        let Some(owner) = context.view.owner(device).filter(|&owner| !is_latency(context.view, owner)) else { return };
        let running = context.demand.replica_on(owner, device).is_some_and(|replica| replica.running > 0);
        let work = running || context.demand.waiting(owner).is_some();
        if let Some(state) = self.devices.get_mut(device.index()) {
            state.owner_rate.has_work(context.now, work);
        }
    }

    /// True if the device belongs to a best-effort tenant that has work and had less than its minimum rate.
    pub(super) fn owes_owner(&self, context: &Context<'_>, device: DeviceId) -> bool {
        let percent = self.options.owner_rate_percent;
        self.devices.get(device.index()).is_some_and(|state| state.owner_rate.is_behind(context.now, percent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_behind_when_it_had_less_than_its_share_of_the_last_seconds() {
        let mut rate = OwnerRate::default();
        assert!(!rate.is_behind(Nanos::secs(3), 30), "it has no work");
        rate.has_work(Nanos::secs(3), true);
        assert!(!rate.is_behind(Nanos::ms(3900), 30), "not even a second");
        assert!(rate.is_behind(Nanos::secs(5), 30));
        rate.ran(Nanos::secs(5), Nanos::ms(700));
        assert!(!rate.is_behind(Nanos::secs(5), 30), "700 ms of 2 s");
        assert!(rate.is_behind(Nanos::secs(6), 30), "700 ms of 3 s");
        rate.ran(Nanos::secs(9), Nanos::secs(2));
        assert!(!rate.is_behind(Nanos::secs(10), 30), "2.7 s of 5 s");
        assert!(rate.is_behind(Nanos::secs(20), 30), "what was before the window does not count");
    }
}
