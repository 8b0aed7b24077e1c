//! A queue of lines that wait to be written. It is bounded in bytes, and adding a line never waits.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::Counter;

/// Maximum bytes of a line; a longer one is cut.
const MAX_LINE: usize = 64 << 10;
/// Bytes of a line besides its text.
const OVERHEAD: usize = size_of::<Line>();

/// The lines between the threads that log and the thread that writes.
pub(super) struct Queue {
    max_bytes: usize,
    state: Mutex<State>,
    /// A line was added.
    added: Condvar,
    /// The last line was written or dropped.
    emptied: Condvar,
}

/// A line, and its position in the order of all lines.
struct Line {
    // The two queues are one log, so the number says which line is older.
    number: u64,
    text: Vec<u8>,
}

struct State {
    errors: VecDeque<Line>,
    others: VecDeque<Line>,
    bytes: usize,
    next_number: u64,
    /// The writer has a line that is in neither queue.
    is_writing: bool,
    unwritten: Dropped,
    without_room: Dropped,
}

/// Lines that were dropped for one reason.
struct Dropped {
    count: u64,
    counter: Option<Counter>,
}

impl Queue {
    pub(super) const fn new(max_bytes: usize) -> Self {
        let state = State {
            errors: VecDeque::new(),
            others: VecDeque::new(),
            bytes: 0,
            next_number: 0,
            is_writing: false,
            unwritten: Dropped { count: 0, counter: None },
            without_room: Dropped { count: 0, counter: None },
        };
        Self { max_bytes, state: Mutex::new(state), added: Condvar::new(), emptied: Condvar::new() }
    }

    /// Adds a line. If the queue is full, an error displaces the newest other lines; it is dropped if only errors are queued.
    pub(super) fn push(&self, line: &[u8], is_error: bool) {
        let text = cut(line);
        let mut state = self.lock();
        let room = self.max_bytes.saturating_sub(text.len() + OVERHEAD);
        // The newest lines go first: the oldest ones are usually closer to the cause of an error.
        while is_error && state.bytes > room {
            let Some(other) = state.others.pop_back() else { break };
            state.bytes -= other.bytes();
            state.without_room.add(1);
        }
        if state.bytes > room {
            state.without_room.add(1);
            return;
        }
        let line = Line { number: state.next_number, text };
        state.next_number += 1;
        state.bytes += line.bytes();
        if is_error {
            state.errors.push_back(line)
        } else {
            state.others.push_back(line)
        }
        self.added.notify_one();
    }

    /// Waits for the oldest line. It counts as being written until the next call.
    pub(super) fn pop(&self) -> Vec<u8> {
        let mut state = self.lock();
        // The line of the call before is written by now.
        state.is_writing = false;
        loop {
            if let Some(line) = state.pop() {
                state.is_writing = true;
                return line.text;
            }
            self.emptied.notify_all();
            state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Numbers of dropped lines: unwritten ones, and those for which the queue was full. `None` while lines wait.
    pub(super) fn dropped_when_empty(&self) -> Option<[u64; 2]> {
        // The writer reports the loss as a line of its own, which a full queue would drop.
        let state = self.lock();
        let is_empty = state.errors.is_empty() && state.others.is_empty();
        is_empty.then_some([state.unwritten.count, state.without_room.count])
    }

    /// Counts a line that could not be written.
    pub(super) fn count_unwritten(&self) {
        self.lock().unwritten.add(1);
    }

    /// Counts dropped lines in these counters too, those dropped before included.
    pub(super) fn count_dropped(&self, unwritten: Counter, without_room: Counter) {
        let mut state = self.lock();
        state.unwritten.count_in(unwritten);
        state.without_room.count_in(without_room);
    }

    /// Waits until no line is left, but not longer than `patience`.
    pub(super) fn wait_until_written(&self, patience: Duration) {
        let is_left = |state: &mut State| {
            state.is_writing || !state.errors.is_empty() || !state.others.is_empty()
        };
        // Lines that are left after that are lost.
        drop(self.emptied.wait_timeout_while(self.lock(), patience, is_left));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pop(&mut self) -> Option<Line> {
        let is_before = |a: &Line, b: Option<&Line>| b.is_none_or(|b| a.number < b.number);
        let line = match self.errors.front() {
            Some(error) if is_before(error, self.others.front()) => self.errors.pop_front(),
            _ => self.others.pop_front(),
        }?;
        self.bytes -= line.bytes();
        Some(line)
    }
}

impl Line {
    fn bytes(&self) -> usize {
        self.text.len() + OVERHEAD
    }
}

impl Dropped {
    fn add(&mut self, lines: u64) {
        self.count += lines;
        if let Some(counter) = &self.counter {
            counter.increment(lines);
        }
    }

    fn count_in(&mut self, counter: Counter) {
        // Lines may be dropped before the metrics exist.
        counter.increment(self.count);
        self.counter = Some(counter);
    }
}

/// The line with its end, cut to the maximum length.
fn cut(line: &[u8]) -> Vec<u8> {
    if line.len() <= MAX_LINE {
        return line.to_vec();
    }
    let is_inside = |byte: u8| byte & 0xc0 == 0x80; // a character in UTF-8
    // The end of the line takes one byte.
    let mut end = MAX_LINE - 1;
    while end > 0 && is_inside(line[end]) {
        end -= 1;
    }
    [&line[..end], b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Instant;

    use super::*;

    const INFO: bool = false;
    const ERROR: bool = true;

    /// A queue for `lines` lines of three bytes.
    fn with_room_for(lines: usize) -> Queue {
        Queue::new(lines * (3 + OVERHEAD))
    }

    fn without_room(queue: &Queue) -> u64 {
        queue.lock().without_room.count
    }

    fn all(queue: &Queue) -> String {
        let left = |state: &State| state.errors.len() + state.others.len();
        let count = left(&queue.lock());
        // `pop` would wait for ever in an empty queue.
        let lines: Vec<u8> = (0..count).flat_map(|_| queue.pop()).collect();
        assert_eq!(queue.lock().bytes, 0);
        String::from_utf8(lines).unwrap()
    }

    #[test]
    fn lines_keep_their_order_whatever_their_level() {
        let queue = with_room_for(9);
        for (line, level) in [("i1\n", INFO), ("e2\n", ERROR), ("i3\n", INFO), ("e4\n", ERROR)] {
            queue.push(line.as_bytes(), level);
        }
        assert_eq!(all(&queue), "i1\ne2\ni3\ne4\n");
        assert_eq!(without_room(&queue), 0);
    }

    #[test]
    fn errors_take_the_room_of_other_lines() {
        let queue = with_room_for(3);
        for line in ["i1\n", "i2\n", "i3\n", "i4\n"] {
            queue.push(line.as_bytes(), INFO);
        }
        assert_eq!(without_room(&queue), 1);
        queue.push(b"e5\n", ERROR);
        queue.push(b"e6\n", ERROR);
        queue.push(b"i7\n", INFO);
        assert_eq!(without_room(&queue), 4);
        assert_eq!(all(&queue), "i1\ne5\ne6\n");
    }

    #[test]
    fn a_queue_of_errors_alone_is_bounded_too() {
        let queue = with_room_for(2);
        for line in ["e1\n", "e2\n", "e3\n"] {
            queue.push(line.as_bytes(), ERROR);
        }
        assert_eq!((all(&queue).as_str(), without_room(&queue)), ("e1\ne2\n", 1));
    }

    #[test]
    fn an_empty_line_takes_room() {
        let queue = with_room_for(3);
        (0..1000).for_each(|_| queue.push(b"", INFO));
        // Without a cost besides the text, any number of empty lines would fit.
        assert!(without_room(&queue) > 990);
    }

    #[test]
    fn a_line_without_end_is_cut_between_characters() {
        let queue = Queue::new(1 << 20);
        let long = "a".to_owned() + &"\u{fc}".repeat(MAX_LINE);
        queue.push(long.as_bytes(), ERROR);
        let line = String::from_utf8(queue.pop()).unwrap();
        assert!(line.len() <= MAX_LINE && line.ends_with("\u{fc}\n"), "{} bytes", line.len());
    }

    #[test]
    fn counters_have_what_was_dropped_before_them() {
        let queue = with_room_for(1);
        (0..4).for_each(|_| queue.push(b"i1\n", INFO));
        queue.count_unwritten();
        let counters = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let [unwritten, without_room] = counters.clone().map(Counter::from_arc);
        queue.count_dropped(unwritten, without_room);
        queue.push(b"i1\n", INFO);
        assert_eq!(counters.map(|counter| counter.load(Ordering::Relaxed)), [1, 4]);
    }

    #[test]
    fn the_end_waits_for_the_line_that_is_being_written() {
        let queue = Arc::new(with_room_for(9));
        let short = Duration::from_millis(50);
        let begin = Instant::now();
        queue.wait_until_written(Duration::from_secs(60));
        queue.push(b"i1\n", INFO);
        assert_eq!(queue.pop(), b"i1\n");
        let popped = Instant::now();
        queue.wait_until_written(short);
        assert!(popped.elapsed() >= short);
        let writer = Arc::clone(&queue);
        // It begins by marking its last line as written, which ends the wait below.
        // This thread waits forever, like the log's thread.
        thread::spawn(move || writer.pop());
        queue.wait_until_written(Duration::from_secs(60));
        assert!(begin.elapsed() < Duration::from_secs(50));
    }
}
