//! Sequences that begin alike.

use slicescheduler_gmg::Intent;
use slicescheduler_gmg::id::{DeviceId, RequestId};
use slicescheduler_gmg::request::RequestState;

use super::{Reference, Request};

impl Reference {
    fn open(&self, id: RequestId) -> Option<&Request> {
        self.requests.get(&id).filter(|request| !request.state.is_final())
    }

    fn begin(&mut self, id: RequestId, device: DeviceId, parts: Vec<DeviceId>) {
        if let Some(request) = self.requests.get_mut(&id) {
            (request.state, request.device, request.parts) = (RequestState::Running, Some(device), parts);
        }
    }

    pub(super) fn intend_sharing(&mut self, intent: &Intent) -> Option<()> {
        match intent {
            Intent::SharePrefix { request, device, hashes } => {
                let tenant = self.open(*request).filter(|request| request.device.is_none())?.tenant;
                self.usable(*device)?;
                if self.devices[device.index()].kv.share(*request, tenant, hashes) {
                    self.begin(*request, *device, vec![]);
                }
            }
            Intent::PublishBlocks { request, device, first, hashes } => {
                self.open(*request)?;
                let count = self.usable(*device)?.kv.table(*request).len();
                if !self.requests[request].has_part(*device) || *first as usize + hashes.len() > count {
                    return None;
                }
                self.devices[device.index()].kv.publish(*request, *first as usize, hashes);
            }
            Intent::ForkSequence { of, request } => {
                let tenant = self.open(*request).filter(|request| request.device.is_none())?.tenant;
                let origin = self.open(*of).filter(|origin| origin.tenant == tenant)?;
                let (home, parts) = (origin.device?, origin.parts.clone());
                for &device in parts.iter().chain([&home]) {
                    self.usable(device)?;
                }
                for device in parts.iter().chain([&home]) {
                    self.devices[device.index()].kv.fork(*of, *request);
                }
                self.begin(*request, home, parts);
            }
            Intent::OwnBlock { request, device, block } => {
                self.open(*request)?;
                let kv = &self.usable(*device)?.kv;
                let held = *kv.table(*request).get(*block as usize)?;
                if kv.holders(held) > 1 && kv.queue.is_empty() {
                    return None;
                }
                self.devices[device.index()].kv.own(*request, *block as usize);
            }
            Intent::DropPrefixes { tenant, device } => {
                self.tenants.get(tenant.index())?;
                self.device(*device)?;
                self.devices[device.index()].kv.drop_cached(|owner| owner == *tenant);
            }
            other => unreachable!("the streams have no {other:?}"),
        }
        Some(())
    }
}
