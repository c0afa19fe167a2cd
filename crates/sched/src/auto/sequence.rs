//! From what a search decides to a policy: the sequence; every value dropped in each gap at whose end it is made again, and offloaded in
//! each gap at whose end it is fetched; and on the host between iterations whoever is fetched for its first use.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Id, TensorId};

use super::instance::{Instance, NONE};
use crate::lower::evaluate_within;
use crate::policy::{Away, FetchRule, Gap, Place, Policy, Station, Touches};

/// What a search decides. *Stage* t is op t of the trace with the repeats just before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decisions {
    /// Ops run again, as (stage, op), ascending.
    pub repeats: Vec<(u32, u32)>,
    /// Values away with a copy on the host before a use, as (value, stage, op), ascending.
    pub fetches: Vec<(u32, u32, u32)>,
    /// When fetches may start.
    pub rule: FetchRule,
}

/// A policy in the making, for searches that judge many: its tables are made once, and its gaps are listed by touch.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// Sequence, stations and rule of the decisions; its own list of gaps is empty.
    policy: Policy,
    touches: Touches,
    away: Vec<Option<Away>>,
    /// Stations of the values that never leave across the iteration's end, in the trace's order.
    stations: Vec<Station>,
    /// Number of the persistent value that begins as a value.
    pairs: Vec<u32>,
    /// Place of every run, by stage and op, ascending.
    runs: Vec<((u32, u32), Place)>,
}

impl Draft {
    pub(crate) fn new(request: &Request<'_>) -> Self {
        let policy = Policy::keep(request.trace);
        let mut pairs = vec![NONE; request.trace.tensors().len()];
        for (number, pair) in (0..).zip(request.trace.persistent()) {
            pairs[pair.begin.index()] = number;
        }
        let touches = Touches::of(request.trace, &policy.sequence);
        let stations = policy.stations.clone();
        Self { policy, touches, away: Vec::new(), stations, pairs, runs: Vec::new() }
    }

    /// Makes it the policy of some decisions about an instance of this request.
    pub(crate) fn set(&mut self, request: &Request<'_>, inst: &Instance, decisions: &Decisions) {
        let Self { policy, touches, away, stations, pairs, runs } = self;
        policy.fetch = decisions.rule;
        policy.sequence.clear();
        policy.stations.clone_from(stations);
        runs.clear();
        let mut again = decisions.repeats.iter().peekable();
        for (index, &op) in (0u32..).zip(&inst.order) {
            while let Some(&(stage, repeat)) = again.next_if(|&&(stage, _)| stage == index) {
                runs.push(((stage, repeat), policy.sequence.len() as Place));
                policy.sequence.push(inst.order[repeat as usize]);
            }
            runs.push(((index, index), policy.sequence.len() as Place));
            policy.sequence.push(op);
        }
        *touches = Touches::of(request.trace, &policy.sequence);
        away.clear();
        away.resize(touches.len(), None);
        for value in (0..request.trace.tensors().len()).map(TensorId::new) {
            let numbers = touches.numbers(value);
            for number in numbers.start + 1..numbers.end {
                if touches.at(number).made {
                    away[number as usize - 1] = Some(Away::Drop);
                }
            }
        }
        for &(value, stage, op) in &decisions.fetches {
            let Ok(run) = runs.binary_search_by_key(&(stage, op), |&(run, _)| run) else { continue };
            let numbers = touches.numbers(TensorId(value));
            let Some(number) = touches.number(TensorId(value), runs[run].1) else { continue };
            let station = policy.stations.get_mut(pairs[value as usize] as usize);
            match station {
                Some(station) if number == numbers.start => *station = Station::Host,
                // What never changes need not be copied every time: the host has it anyway.
                Some(station)
                    if inst.values[value as usize].becomes == value && *station == Station::Device =>
                {
                    *station = Station::Both;
                }
                _ => {}
            }
            if number > numbers.start && !touches.at(number).made {
                away[number as usize - 1] = Some(Away::Offload);
            }
        }
    }

    /// The exact iteration time, if there is a schedule and it takes no longer than `worst`.
    pub(crate) fn time_within(&self, request: &Request<'_>, worst: u64) -> Option<u64> {
        let evaluated = evaluate_within(request, &self.policy, &self.touches, &self.away, worst);
        evaluated.ok().flatten().map(|(time, _)| time.get())
    }

    /// The policy by itself.
    pub(crate) fn into_policy(mut self) -> Policy {
        for value in (0..self.pairs.len()).map(TensorId::new) {
            for number in self.touches.numbers(value) {
                if let Some(away) = self.away[number as usize] {
                    self.policy.send(Gap::after(value, self.touches.at(number).place), away);
                }
            }
        }
        self.policy
    }
}

/// The policy of some decisions about an instance of a request.
pub(crate) fn policy(request: &Request<'_>, inst: &Instance, decisions: &Decisions) -> Policy {
    let mut draft = Draft::new(request);
    draft.set(request, inst, decisions);
    draft.into_policy()
}
