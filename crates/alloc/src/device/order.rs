//! The order of tasks of different queues: which waits a task needs, and which bytes tasks still use.
//!
//! Each task has a position in its queue, and each range of bytes the latest positions at which it was written and used. A task that reads
//! a range waits for its writes, one that writes or reuses it for all its uses. What a queue has already waited for, also by way of another
//! queue, is not waited for again.

use std::collections::VecDeque;

use super::accelerator::{Accelerator, AcceleratorError, Queue};

/// A position in each queue; 0 is before the first task.
pub(super) type Positions = [u64; 3];

/// The later of two positions, queue by queue.
pub(super) fn later(one: Positions, other: Positions) -> Positions {
    std::array::from_fn(|queue| one[queue].max(other[queue]))
}

/// The latest tasks that wrote and that used a range of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    pub written: Positions,
    pub any: Positions,
}

impl Uses {
    /// Adds a task that reads.
    pub fn read(&mut self, queue: Queue, position: u64) {
        self.any[queue as usize] = position;
    }

    /// Adds a task that writes, and which waited for all earlier uses: only this one is left to wait for.
    pub fn write(&mut self, queue: Queue, position: u64) {
        *self = Self::default();
        self.written[queue as usize] = position;
        self.any[queue as usize] = position;
    }
}

/// A recorded event, and what its queue had waited for by then.
struct Mark<E> {
    position: u64,
    event: E,
    known: Positions,
}

/// The queues of a device.
pub(super) struct Order<A: Accelerator> {
    pub accelerator: A,
    issued: Positions,
    done: Positions,
    /// For each queue, the positions that its next task is behind.
    known: [Positions; 3],
    marks: [VecDeque<Mark<A::Event>>; 3],
    spare: Vec<A::Event>,
    /// Waits issued.
    pub waits: u64,
}

impl<A: Accelerator> Order<A> {
    pub fn new(accelerator: A) -> Self {
        Self {
            accelerator,
            issued: [0; 3],
            done: [0; 3],
            known: [[0; 3]; 3],
            marks: std::array::from_fn(|_| VecDeque::new()),
            spare: Vec::new(),
            waits: 0,
        }
    }

    /// An event for any purpose.
    pub fn event(&mut self) -> Result<A::Event, AcceleratorError> {
        self.spare.pop().map_or_else(|| self.accelerator.event(), Ok)
    }

    /// Takes an event back.
    pub fn recycle(&mut self, event: A::Event) {
        self.spare.push(event);
    }

    /// Makes the next task of a queue wait for positions of the others, and returns that task's position. The task must be issued next, and
    /// [`mark`](Self::mark) called behind it.
    pub fn begin(&mut self, queue: Queue, after: Positions) -> Result<u64, AcceleratorError> {
        let own = queue as usize;
        for other in Queue::ALL {
            let number = other as usize;
            if number == own || after[number] <= self.known[own][number].max(self.done[number]) {
                continue;
            }
            if self.marks[number].back().is_none_or(|mark| mark.position < after[number]) {
                // An operation that panicked was not marked.
                self.mark(other)?;
            }
            let Some(mark) = self.marks[number].iter().find(|mark| mark.position >= after[number]) else {
                continue;
            };
            self.accelerator.wait(queue, &mark.event)?;
            self.waits += 1;
            self.known[own] = later(self.known[own], mark.known);
            self.known[own][number] = self.known[own][number].max(mark.position);
        }
        self.issued[own] += 1;
        self.known[own][own] = self.issued[own];
        Ok(self.issued[own])
    }

    /// Records an event behind the latest task of a queue.
    pub fn mark(&mut self, queue: Queue) -> Result<(), AcceleratorError> {
        self.poll()?;
        let own = queue as usize;
        let mut event = self.event()?;
        self.accelerator.record(queue, &mut event)?;
        self.marks[own].push_back(Mark { position: self.issued[own], event, known: self.known[own] });
        Ok(())
    }

    /// Looks which tasks have ended.
    fn poll(&mut self) -> Result<(), AcceleratorError> {
        for (marks, done) in self.marks.iter_mut().zip(&mut self.done) {
            while let Some(mark) = marks.front()
                && self.accelerator.is_done(&mark.event)?
            {
                *done = mark.position;
                self.spare.extend(marks.pop_front().map(|mark| mark.event));
            }
        }
        Ok(())
    }

    /// The position of the latest task of a queue.
    pub fn issued(&self, queue: Queue) -> u64 {
        self.issued[queue as usize]
    }

    /// Whether tasks at these positions may still be in progress, as far as is known.
    pub fn is_pending(&self, positions: Positions) -> bool {
        positions.iter().zip(&self.done).any(|(position, done)| position > done)
    }

    /// Waits until the tasks at these positions have ended.
    pub fn synchronize(&mut self, positions: Positions) -> Result<(), AcceleratorError> {
        for queue in Queue::ALL {
            let number = queue as usize;
            if positions[number] <= self.done[number] {
                continue;
            }
            if self.marks[number].back().is_none_or(|mark| mark.position < positions[number]) {
                self.mark(queue)?;
            }
            if let Some(mark) = self.marks[number].iter().find(|mark| mark.position >= positions[number]) {
                self.accelerator.synchronize(&mark.event)?;
            }
        }
        self.poll()
    }

    /// Waits until every task has ended.
    pub fn finish(&mut self) -> Result<(), AcceleratorError> {
        self.synchronize(self.issued)
    }
}

impl<A: Accelerator> Drop for Order<A> {
    fn drop(&mut self) {
        let marked = self.marks.iter_mut().flat_map(|marks| marks.drain(..)).map(|mark| mark.event);
        for event in marked.collect::<Vec<_>>().into_iter().chain(self.spare.drain(..)) {
            self.accelerator.drop_event(event);
        }
    }
}

/// Bytes that belong to no block any more, but which tasks may still use.
#[derive(Debug, Default)]
pub(super) struct Remains(Vec<(usize, usize, Positions)>);

impl Remains {
    /// Adds the range `start..end`.
    pub fn add(&mut self, start: usize, end: usize, positions: Positions) {
        if positions != [0; 3] {
            self.0.push((start, end, positions));
        }
    }

    /// What a task that writes `start..end` must wait for. Ranges that lie within it need not be kept: what uses these bytes later waits for
    /// that task.
    pub fn take<A: Accelerator>(&mut self, start: usize, end: usize, order: &Order<A>) -> Positions {
        let mut after = [0; 3];
        self.0.retain(|&(from, to, positions)| {
            if from < end && start < to {
                after = later(after, positions);
            }
            (from < start || end < to) && order.is_pending(positions)
        });
        after
    }
}
