//! The table of requests.
//!
//! Requests are numbered as they arrive and go in almost the same order, so they lie in pages of
//! consecutive numbers: a look-up is two loads, the requests of a batch are neighbours, and pages
//! whose requests are all gone are used again.

use std::collections::VecDeque;

use crate::id::RequestId;
use crate::request::Request;

/// Requests of a page.
const PAGE: u64 = 64;

/// Pages that are kept for later.
const SPARE: usize = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    /// Number of the first page.
    first: u64,
    /// [`None`]: no request of the page lives.
    pages: VecDeque<Option<Box<Page>>>,
    spare: Vec<Box<Page>>,
}

#[derive(Clone, Debug)]
struct Page {
    live: u32,
    requests: [Option<Request>; PAGE as usize],
}

impl Requests {
    pub(crate) fn get(&self, id: RequestId) -> Option<&Request> {
        let page = self.pages.get((id.0 / PAGE).checked_sub(self.first)? as usize)?.as_ref()?;
        page.requests[(id.0 % PAGE) as usize].as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let page = self.pages.get_mut((id.0 / PAGE).checked_sub(self.first)? as usize)?.as_mut()?;
        page.requests[(id.0 % PAGE) as usize].as_mut()
    }

    /// The requests there are, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        let page = |(number, page): (u64, &Page)| {
            let live = page.requests.iter().map(Option::is_some).collect::<Vec<_>>();
            let ids = (number * PAGE..).zip(live).filter(|&(_, live)| live).map(|(id, _)| RequestId(id));
            ids.collect::<Vec<_>>()
        };
        (self.first..).zip(&self.pages).filter_map(|(number, page)| Some((number, &**page.as_ref()?))).flat_map(page)
    }

    /// The number of the first page with a request, and the requests of each from there to the last: bit `i`
    /// stands for the `i`th.
    #[cfg(feature = "serde")]
    pub(super) fn pages(&self) -> (u64, Vec<u64>) {
        let bits = |page: &Page| {
            page.requests.iter().enumerate().fold(0, |bits, (at, request)| bits | u64::from(request.is_some()) << at)
        };
        let mut pages: Vec<u64> = self.pages.iter().map(|page| page.as_deref().map_or(0, bits)).collect();
        let live = pages.iter().rposition(|&bits| bits != 0).map_or(0, |last| last + 1);
        pages.truncate(live);
        (if live > 0 { self.first } else { 0 }, pages)
    }

    /// Enters, replaces or, with [`None`], removes a request.
    pub(crate) fn set(&mut self, id: RequestId, request: Option<&Request>) {
        match request {
            Some(request) => self.enter(id, request),
            None => self.remove(id),
        }
    }

    fn enter(&mut self, id: RequestId, request: &Request) {
        let number = id.0 / PAGE;
        if self.pages.is_empty() {
            self.first = number;
        }
        while number < self.first {
            self.pages.push_front(None);
            self.first -= 1;
        }
        let index = (number - self.first) as usize;
        if index >= self.pages.len() {
            self.pages.resize_with(index + 1, || None);
        }
        let spare = &mut self.spare;
        let empty =
            || spare.pop().unwrap_or_else(|| Box::new(Page { live: 0, requests: [const { None }; PAGE as usize] }));
        let page = self.pages[index].get_or_insert_with(empty);
        let place = &mut page.requests[(id.0 % PAGE) as usize];
        page.live += u32::from(place.is_none());
        *place = Some(*request);
    }

    fn remove(&mut self, id: RequestId) {
        let Some(index) = (id.0 / PAGE).checked_sub(self.first) else { return };
        let Some(place) = self.pages.get_mut(index as usize) else { return };
        let Some(page) = place else { return };
        page.live -= u32::from(page.requests[(id.0 % PAGE) as usize].take().is_some());
        if page.live == 0 {
            self.spare.extend(place.take().filter(|_| self.spare.len() < SPARE));
        }
        while let Some(None) = self.pages.front() {
            self.pages.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::id::TenantId;
    use crate::request::RequestState;
    use crate::units::Nanos;

    fn request(prompt: u32) -> Request {
        Request {
            tenant: TenantId(0),
            arrival: Nanos(0),
            prompt,
            max_output: 1,
            state: RequestState::Waiting,
            device: None,
            produced: 0,
            slo: None,
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_an_ordered_map_holds(steps in prop::collection::vec((0u64..700, any::<u32>(), 0u8..4), 1..400)) {
            let (mut table, mut map) = (Requests::default(), BTreeMap::new());
            for (id, prompt, kind) in steps {
                let id = RequestId(id);
                if kind == 0 {
                    table.set(id, Some(&request(prompt)));
                    map.insert(id, request(prompt));
                } else {
                    let id = map.keys().next().copied().filter(|_| kind == 1).unwrap_or(id);
                    table.set(id, None);
                    map.remove(&id);
                }
                prop_assert_eq!(table.get(id), map.get(&id));
                prop_assert_eq!(table.get_mut(id), map.get_mut(&id));
                prop_assert!(table.pages.len() <= 1 + 700 / PAGE as usize);
            }
            for id in (0..800).map(RequestId) {
                prop_assert_eq!(table.get(id), map.get(&id));
            }
            prop_assert_eq!(table.pages.iter().flatten().map(|page| page.live as usize).sum::<usize>(), map.len());
        }
    }
}
