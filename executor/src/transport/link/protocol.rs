//! What an end of a link does with what it hears, without doing it: bytes in, bytes out.
//!
//! The destination decides. It grants an id once it has a place for it, from the byte that it lacks; only
//! then does the source send, so nothing arrives that has no place. Either half may be submitted first: a
//! source offers, a destination that has the id answers with a grant, and grants unasked when it gets the id.
//! What is said about an id that an end does not know is passed over, for it will be said again.
//!
//! **Cuts.** Anything that is not a frame with the right checksum makes the connection worthless. On a new
//! one, offers and grants are said anew, so every transfer goes on where its destination is. A destination
//! that has everything remembers that for a while, and says so to a source that did not hear it.
//!
//! **Silence.** An end that asks is answered, so one that answers nothing is not there, whatever its
//! carrier says.
//!
//! **Memory.** Two buffers of a chunk and a header, allocated once; one answer per submitted transfer and a
//! bounded number besides: while there are more, nothing is read.

use std::collections::VecDeque;

use slicescheduler_gmg::units::{Bytes, Nanos};

use super::frame::{Broken, FROM_DESTINATION, FROM_SOURCE, Frame, HEADER, Kind};
use crate::error::ExecutorError;
use crate::transport::{Ends, Transfer, TransferEvent};

/// Ids of ended transfers that are remembered for an other end that did not hear of it.
const REMEMBERED: usize = 1024;
/// Answers beyond which nothing is read.
const ANSWERS: usize = 64;

#[derive(Debug)]
struct Outgoing {
    transfer: Transfer,
    started: Option<Nanos>,
    /// The next byte to send, once it is granted on this connection.
    granted: Option<u64>,
    /// The furthest byte that was ever granted.
    reached: Option<u64>,
    /// Every byte was sent, on this connection.
    sent_all: bool,
    /// One past the last byte that was ever sent.
    sent: u64,
}

#[derive(Debug)]
struct Incoming {
    transfer: Transfer,
    started: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    end: Ends,
    id: u64,
    whole: bool,
}

/// One end.
#[derive(Debug)]
pub(super) struct Protocol {
    /// Of this end's life, so that the other one notices a new one.
    life: u64,
    others_life: Option<u64>,
    /// The other end has said hello on this connection.
    greeted: bool,
    chunk: usize,
    /// The longest chunk that the other end takes, this end's at most.
    others_chunk: usize,
    outgoing: VecDeque<Outgoing>,
    incoming: Vec<Incoming>,
    ended: VecDeque<Ended>,
    answers: VecDeque<Frame>,
    inbox: Box<[u8]>,
    received: usize,
    outbox: Box<[u8]>,
    /// What of the outbox is to be sent.
    unsent: std::ops::Range<usize>,
    events: Vec<TransferEvent>,
    /// New grants, data, ends or answers were heard since this was last asked.
    progressed: bool,
    /// The other end has said that it ends.
    pub(super) left_alone: bool,
}

impl Protocol {
    pub(super) fn new(life: u64, chunk: usize) -> Self {
        let buffer = || vec![0; HEADER + chunk].into_boxed_slice();
        Self {
            life,
            others_life: None,
            greeted: false,
            chunk,
            others_chunk: chunk,
            outgoing: VecDeque::new(),
            incoming: Vec::new(),
            ended: VecDeque::with_capacity(REMEMBERED),
            answers: VecDeque::new(),
            inbox: buffer(),
            received: 0,
            outbox: buffer(),
            unsent: 0..0,
            events: Vec::new(),
            progressed: false,
            left_alone: false,
        }
    }

    /// Transfers that have not ended.
    pub(super) fn len(&self) -> usize {
        self.outgoing.len() + self.incoming.len()
    }

    /// A new connection: what was on the way is not, and everything is said again.
    pub(super) fn connected(&mut self) {
        (self.greeted, self.left_alone) = (false, false);
        (self.received, self.unsent) = (0, 0..0);
        self.answers.clear();
        self.answers.push_back(Frame::new(Kind::Hello, self.life, self.chunk as u64, 0));
        for outgoing in &mut self.outgoing {
            (outgoing.granted, outgoing.sent_all) = (None, false);
        }
        self.answers.extend(self.outgoing.iter().map(offer));
        self.answers.extend(self.incoming.iter().map(|incoming| grant(&incoming.transfer)));
    }

    /// Takes one half of a transfer.
    pub(super) fn submit(&mut self, transfer: Transfer) {
        if transfer.ends() == Ends::Source {
            let outgoing = Outgoing { transfer, started: None, granted: None, reached: None, sent_all: false, sent: 0 };
            self.answers.push_back(offer(&outgoing));
            self.outgoing.push_back(outgoing);
        } else {
            self.answers.push_back(grant(&transfer));
            self.incoming.push(Incoming { transfer, started: None });
        }
    }

    /// Where the next received bytes go; nowhere while too much is to be answered.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.answers.len() > ANSWERS + self.len() {
            return &mut [];
        }
        let end = self.wanted();
        self.inbox.get_mut(self.received..end).unwrap_or_default()
    }

    /// Bytes of the frame that is being received, as far as that is known: a header without a frame in it
    /// was refused when it was complete.
    fn wanted(&self) -> usize {
        let header = self.inbox.first_chunk::<HEADER>().filter(|_| self.received >= HEADER);
        let frame = header.and_then(|header| Frame::parse(header, self.chunk).ok());
        HEADER + frame.map_or(0, |frame| frame.payload() as usize)
    }

    /// The first `count` bytes of [`room`](Self::room) were received.
    pub(super) fn received(&mut self, count: usize, now: Nanos) -> Result<(), Broken> {
        self.received = (self.received + count).min(self.inbox.len());
        let Some(header) = self.inbox.first_chunk::<HEADER>().filter(|_| self.received >= HEADER) else {
            return Ok(());
        };
        let frame = Frame::parse(header, self.chunk)?;
        let end = HEADER + frame.payload() as usize;
        if self.received < end {
            return Ok(());
        }
        self.received = 0;
        Frame::check(&self.inbox[..end])?;
        self.heard(frame, end, now)
    }

    fn heard(&mut self, frame: Frame, end: usize, now: Nanos) -> Result<(), Broken> {
        if frame.kind != Kind::Hello && !self.greeted {
            return Err(Broken::NoHello);
        }
        // A grant is new or is none; see there.
        self.progressed |= !matches!(frame.kind, Kind::Hello | Kind::Offer | Kind::Grant | Kind::Ask);
        match frame.kind {
            Kind::Hello => return self.hello(frame, now),
            Kind::Offer => self.offered(frame, now),
            Kind::Grant => self.granted(frame, now),
            Kind::Data => self.data(frame, end, now),
            Kind::Done => self.end_outgoing(frame.id, now, |_| Ok(())),
            Kind::Fail if frame.offset == FROM_DESTINATION => self.end_outgoing(frame.id, now, failed_there),
            Kind::Fail => self.end_incoming(frame.id, now, failed_there),
            Kind::Bye => self.left_alone = true,
            Kind::Ask => self.answers.push_back(Frame::new(Kind::Alive, 0, 0, 0)),
            Kind::Alive => {}
        }
        Ok(())
    }

    fn hello(&mut self, frame: Frame, now: Nanos) -> Result<(), Broken> {
        self.others_chunk = usize::try_from(frame.offset).map_or(self.chunk, |chunk| chunk.min(self.chunk));
        if self.others_chunk == 0 {
            return Err(Broken::NoHello);
        }
        self.greeted = true;
        if self.others_life.replace(frame.id).is_some_and(|before| before != frame.id) {
            // What came in before was another life's; its rest may not be the same.
            let begun = |incoming: &Incoming| incoming.transfer.left() < incoming.transfer.size();
            while let Some(id) = self.incoming.iter().find(|incoming| begun(incoming)).map(|i| i.transfer.id().0) {
                self.end_incoming(id, now, failed_there);
                self.answers.push_back(Frame::new(Kind::Fail, id, FROM_DESTINATION, 0));
            }
        }
        Ok(())
    }

    fn offered(&mut self, frame: Frame, now: Nanos) {
        if let Some(incoming) = self.incoming.iter().find(|incoming| incoming.transfer.id().0 == frame.id) {
            let (here, there) = (incoming.transfer.size(), Bytes(frame.size));
            if here == there {
                self.answers.push_back(grant(&incoming.transfer));
            } else {
                self.end_incoming(frame.id, now, |_| Err(ExecutorError::TransferSize { here, there }));
                self.answers.push_back(Frame::new(Kind::Fail, frame.id, FROM_DESTINATION, 0));
            }
            return;
        }
        match self.remembered(Ends::Destination, frame.id) {
            Some(true) if frame.offset == frame.size => {
                self.answers.push_back(Frame::new(Kind::Done, frame.id, 0, 0));
            }
            Some(false) => self.answers.push_back(Frame::new(Kind::Fail, frame.id, FROM_DESTINATION, 0)),
            _ => {}
        }
    }

    fn granted(&mut self, frame: Frame, now: Nanos) {
        let Some(outgoing) = self.outgoing.iter_mut().find(|outgoing| outgoing.transfer.id().0 == frame.id) else {
            if self.remembered(Ends::Source, frame.id) == Some(false) {
                self.answers.push_back(Frame::new(Kind::Fail, frame.id, FROM_SOURCE, 0));
            }
            return;
        };
        let (here, there) = (outgoing.transfer.size(), Bytes(frame.size));
        if here != there || frame.offset > here.get() {
            self.end_outgoing(frame.id, now, |_| Err(ExecutorError::TransferSize { here, there }));
            self.answers.push_back(Frame::new(Kind::Fail, frame.id, FROM_SOURCE, 0));
        } else if outgoing.granted.is_none() {
            // A second grant has crossed the offer that the first one answered.
            outgoing.granted = Some(frame.offset);
            self.progressed |= outgoing.reached.replace(frame.offset) < Some(frame.offset);
            outgoing.started.get_or_insert(now);
        }
    }

    fn data(&mut self, frame: Frame, end: usize, now: Nanos) {
        let place = self.incoming.iter().position(|incoming| incoming.transfer.id().0 == frame.id);
        let Some(incoming) = place.and_then(|place| self.incoming.get_mut(place)) else { return };
        let transfer = &mut incoming.transfer;
        if frame.offset != (transfer.size() - transfer.left()).get() {
            return;
        }
        incoming.started.get_or_insert(now);
        let written = transfer.write_next(&self.inbox[HEADER..end]);
        let answer = match written {
            Ok(()) if !transfer.left().is_zero() => return,
            Ok(()) => {
                self.end_incoming(frame.id, now, |_| Ok(()));
                Frame::new(Kind::Done, frame.id, 0, 0)
            }
            Err(error) => {
                self.end_incoming(frame.id, now, |_| Err(error));
                Frame::new(Kind::Fail, frame.id, FROM_DESTINATION, 0)
            }
        };
        self.answers.push_back(answer);
    }

    /// Bytes to send.
    pub(super) fn outbound(&mut self, now: Nanos) -> &[u8] {
        if self.unsent.is_empty() {
            if let Some(answer) = self.answers.pop_front() {
                answer.seal(&mut self.outbox[..HEADER]);
                self.unsent = 0..HEADER;
            } else if let Some(end) = self.next_data(now) {
                self.unsent = 0..end;
            }
        }
        self.outbox.get(self.unsent.clone()).unwrap_or_default()
    }

    /// The first `count` bytes of [`outbound`](Self::outbound) were sent.
    pub(super) fn sent(&mut self, count: usize) {
        self.unsent.start += count;
    }

    /// Puts the next chunk into the outbox, of the first transfer that has one; where it ends.
    fn next_data(&mut self, now: Nanos) -> Option<usize> {
        let ready = |outgoing: &&mut Outgoing| outgoing.granted.is_some() && !outgoing.sent_all;
        let outgoing = self.outgoing.iter_mut().find(ready)?;
        let (id, size, offset) = (outgoing.transfer.id().0, outgoing.transfer.size().get(), outgoing.granted?);
        let length = (size - offset).min(self.others_chunk as u64);
        let end = HEADER + length as usize;
        if let Err(error) = outgoing.transfer.read_at(Bytes(offset), &mut self.outbox[HEADER..end]) {
            self.end_outgoing(id, now, |_| Err(error));
            self.answers.push_back(Frame::new(Kind::Fail, id, FROM_SOURCE, 0));
            return None;
        }
        Frame::new(Kind::Data, id, offset, length).seal(&mut self.outbox[..end]);
        outgoing.granted = Some(offset + length);
        outgoing.sent = outgoing.sent.max(offset + length);
        outgoing.sent_all = offset + length == size;
        Some(end)
    }

    fn end_outgoing(&mut self, id: u64, now: Nanos, outcome: impl FnOnce(&Transfer) -> crate::Result<()>) {
        let place = self.outgoing.iter().position(|outgoing| outgoing.transfer.id().0 == id);
        let Some(Outgoing { mut transfer, started, .. }) = place.and_then(|place| self.outgoing.remove(place)) else {
            return;
        };
        let outcome = outcome(&transfer);
        if outcome.is_ok() {
            transfer.arrived();
        }
        self.remember(Ended { end: Ends::Source, id, whole: outcome.is_ok() });
        self.events.push(transfer.end(started.unwrap_or(now), now, outcome));
    }

    fn end_incoming(&mut self, id: u64, now: Nanos, outcome: impl FnOnce(&Transfer) -> crate::Result<()>) {
        let Some(place) = self.incoming.iter().position(|incoming| incoming.transfer.id().0 == id) else { return };
        let Incoming { transfer, started } = self.incoming.remove(place);
        let outcome = outcome(&transfer);
        self.remember(Ended { end: Ends::Destination, id, whole: outcome.is_ok() });
        self.events.push(transfer.end(started.unwrap_or(now), now, outcome));
    }

    fn remember(&mut self, ended: Ended) {
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }

    /// Whether an ended transfer ended whole, if it is remembered.
    fn remembered(&self, end: Ends, id: u64) -> Option<bool> {
        self.ended.iter().rev().find(|ended| ended.end == end && ended.id == id).map(|ended| ended.whole)
    }

    /// Ends all transfers.
    pub(super) fn give_up(&mut self, now: Nanos, why: impl Fn(&Transfer) -> ExecutorError) {
        while let Some(id) = self.outgoing.front().map(|outgoing| outgoing.transfer.id().0) {
            self.end_outgoing(id, now, |transfer| Err(why(transfer)));
        }
        while let Some(id) = self.incoming.first().map(|incoming| incoming.transfer.id().0) {
            self.end_incoming(id, now, |transfer| Err(why(transfer)));
        }
    }

    /// Says that this end ends, instead of all else that was to be said after the frame under way.
    pub(super) fn say_bye(&mut self) {
        self.answers.clear();
        self.answers.push_back(Frame::new(Kind::Bye, 0, 0, 0));
    }

    /// Asks the other end whether it is there.
    pub(super) fn ask(&mut self) {
        self.answers.push_back(Frame::new(Kind::Ask, 0, 0, 0));
    }

    /// True if a new grant, data, an end or an answer was heard since the last call.
    pub(super) fn has_progressed(&mut self) -> bool {
        std::mem::take(&mut self.progressed)
    }

    /// What has ended since the last call.
    pub(super) fn events(&mut self) -> impl Iterator<Item = TransferEvent> {
        self.events.drain(..)
    }

    #[cfg(test)]
    pub(super) fn answers(&self) -> usize {
        self.answers.len()
    }
}

fn offer(outgoing: &Outgoing) -> Frame {
    Frame::new(Kind::Offer, outgoing.transfer.id().0, outgoing.sent, outgoing.transfer.size().get())
}

fn grant(transfer: &Transfer) -> Frame {
    let has = transfer.size() - transfer.left();
    Frame::new(Kind::Grant, transfer.id().0, has.get(), transfer.size().get())
}

fn failed_there(transfer: &Transfer) -> crate::Result<()> {
    Err(ExecutorError::OtherEndFailed { left: transfer.left(), size: transfer.size() })
}
