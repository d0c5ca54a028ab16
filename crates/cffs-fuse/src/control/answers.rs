//! Answers too long for one buffer.

use super::frame::{BODY_MAX, Frame};
use cffs_buf::CONTROL_LEN;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Long answers that wait to be fetched, at most.
const ANSWERS_MAX: usize = 16;

/// Answers too long for one buffer, until they are fetched.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<(u64, VecDeque<Waiting>)>);

#[derive(Clone, Debug)]
struct Waiting {
    ticket: u64,
    /// The user who asked. Nobody else gets the answer by guessing its ticket.
    uid: u32,
    text: Arc<[u8]>,
}

impl Answers {
    /// The first buffer of an answer.
    pub(super) fn first(&self, uid: u32, text: Vec<u8>) -> Option<Box<[u8; CONTROL_LEN]>> {
        let position = text.len() as u64;
        if text.len() <= BODY_MAX {
            return Frame { ticket: 0, position, body: &text }.encode();
        }
        let text: Arc<[u8]> = text.into();
        let ticket = {
            let (last, waiting) = &mut *self.0.lock();
            *last += 1;
            waiting.push_back(Waiting { ticket: *last, uid, text: text.clone() });
            if waiting.len() > ANSWERS_MAX {
                waiting.pop_front();
            }
            *last
        };
        Frame { ticket, position, body: &text[..BODY_MAX] }.encode()
    }

    /// A later buffer. `None` if there is no such answer, or if it was dropped.
    pub(super) fn next(&self, uid: u32, ticket: u64, from: u64) -> Option<Box<[u8; CONTROL_LEN]>> {
        let (_, waiting) = &mut *self.0.lock();
        let place = waiting.iter().position(|w| w.ticket == ticket && w.uid == uid)?;
        let text = waiting[place].text.clone();
        let rest = text.get(usize::try_from(from).ok()?..)?;
        if rest.len() <= BODY_MAX {
            waiting.remove(place);
        }
        Frame { ticket, position: text.len() as u64, body: &rest[..rest.len().min(BODY_MAX)] }.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_are_fetched_in_pieces_by_their_owner_alone() {
        let answers = Answers::default();
        let text: Vec<u8> = (0..2 * BODY_MAX + 5).map(|i| i as u8).collect();
        let first = answers.first(7, text.clone()).unwrap();
        let first = Frame::decode(&first[..]).unwrap();
        assert_eq!((first.position, first.body), (text.len() as u64, &text[..BODY_MAX]));
        assert!(answers.next(8, first.ticket, BODY_MAX as u64).is_none(), "somebody else");
        assert!(answers.next(7, first.ticket, 1 << 40).is_none(), "behind the end");
        let second = answers.next(7, first.ticket, BODY_MAX as u64).unwrap();
        assert_eq!(Frame::decode(&second[..]).unwrap().body, &text[BODY_MAX..2 * BODY_MAX]);
        let third = answers.next(7, first.ticket, 2 * BODY_MAX as u64).unwrap();
        assert_eq!(Frame::decode(&third[..]).unwrap().body, &text[2 * BODY_MAX..]);
        assert!(answers.next(7, first.ticket, 0).is_none(), "fetched");
    }

    #[test]
    fn what_nobody_fetches_makes_way() {
        let answers = Answers::default();
        let tickets: Vec<u64> = (0..ANSWERS_MAX + 1)
            .map(|_| Frame::decode(&answers.first(1, vec![0; BODY_MAX + 1]).unwrap()[..]).unwrap().ticket)
            .collect();
        assert!(answers.next(1, tickets[0], BODY_MAX as u64).is_none());
        assert!(answers.next(1, tickets[1], BODY_MAX as u64).is_some());
    }
}
