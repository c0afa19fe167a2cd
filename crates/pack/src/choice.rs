//! The cheapest choice of one option for each of several variables, where some options exclude each other: the implicit hitting set method
//! (Moreno-Centeno and Karp 2013) behind [`crate::repack()`] and [`crate::banks`].
//!
//! A *nogood* is a set of (variable, option) that cannot all be chosen. Callers ask for the cheapest choice that obeys the nogoods known so
//! far, let a packer judge it, and add the nogood that the packer proves. The cost of each choice is a lower bound until a packer accepts one.
//!
//! The last option of every variable must be in no nogood; then there is always a choice.

/// A variable and one of its options.
pub(crate) type Literal = (u32, u32);

/// Components whose nogoods have more literals are decided greedily: the search recurses once per literal.
const MOST_LITERALS: usize = 1_000;
/// Nodes of the search of one component.
const NODES: u64 = 50_000;

/// Variables with the cost of each option, and the nogoods known so far.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    pub(crate) costs: Vec<Vec<u128>>,
    nogoods: Vec<Vec<Literal>>,
}

/// A choice that obeys all nogoods.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The option of every variable.
    pub(crate) options: Vec<u32>,
    /// Its cost.
    pub(crate) cost: u128,
    /// Proved lower bound of the cost of every choice; equal to `cost` unless the search was cut short.
    pub(crate) bound: u128,
}

impl Choices {
    pub(crate) fn new(costs: Vec<Vec<u128>>) -> Self {
        Self { costs, nogoods: Vec::new() }
    }

    /// Adds a nogood. False if it was known, so that a caller who adds nothing new can stop.
    pub(crate) fn forbid(&mut self, mut nogood: Vec<Literal>) -> bool {
        nogood.sort_unstable();
        nogood.dedup();
        if self.nogoods.contains(&nogood) {
            return false;
        }
        self.nogoods.push(nogood);
        true
    }

    /// Adds nogoods of which none is known.
    pub(crate) fn forbid_new(&mut self, nogoods: impl IntoIterator<Item = Vec<Literal>>) {
        self.nogoods.extend(nogoods);
    }

    /// The cheapest choice. Variables that no chain of nogoods connects are decided independently.
    pub(crate) fn cheapest(&self, stop: &dyn Fn() -> bool) -> Chosen {
        let mut search = Search {
            choices: self,
            forbidden: self.costs.iter().map(|costs| vec![false; costs.len()]).collect(),
            required: self.costs.iter().map(|_| None).collect(),
            options: self.costs.iter().map(|costs| cheapest_of(costs, |_| true)).collect(),
            nogoods: Vec::new(),
            best: None,
            nodes: 0,
            stop,
        };
        let mut bound: u128 = 0;
        let mut free: Vec<bool> = vec![true; self.costs.len()];
        for (variables, nogoods) in self.components() {
            search.nogoods = nogoods;
            let cost = |options: &[u32]| -> u128 {
                variables.iter().map(|&v| self.costs[v as usize][options[v as usize] as usize]).sum()
            };
            let relaxed = cost(&search.options);
            let greedy = search.greedy(&variables);
            let greedy_cost: u128 =
                variables.iter().zip(&greedy).map(|(&v, &o)| self.costs[v as usize][o as usize]).sum();
            search.best = Some((greedy_cost, greedy));
            search.nodes = 0;
            let literals: usize = search.nogoods.iter().map(|&n| self.nogoods[n].len()).sum();
            let whole = literals <= MOST_LITERALS && search.descend(&variables, relaxed);
            let (best, options) = search.best.take().unwrap_or_default();
            bound += if whole { best } else { relaxed };
            for (&v, option) in variables.iter().zip(options) {
                search.options[v as usize] = option;
                free[v as usize] = false;
            }
        }
        for (v, _) in free.iter().enumerate().filter(|(_, free)| **free) {
            bound += self.costs[v][search.options[v] as usize];
        }
        let cost =
            self.costs.iter().zip(&search.options).map(|(costs, &option)| costs[option as usize]).sum();
        Chosen { options: search.options, cost, bound }
    }

    /// The variables that nogoods mention, with the nogoods of each connected group.
    fn components(&self) -> Vec<(Vec<u32>, Vec<usize>)> {
        let mut parent: Vec<u32> = (0..self.costs.len() as u32).collect();
        fn root(parent: &mut [u32], mut v: u32) -> u32 {
            while parent[v as usize] != v {
                parent[v as usize] = parent[parent[v as usize] as usize];
                v = parent[v as usize];
            }
            v
        }
        for nogood in &self.nogoods {
            for pair in nogood.windows(2) {
                let (a, b) = (root(&mut parent, pair[0].0), root(&mut parent, pair[1].0));
                parent[a.max(b) as usize] = a.min(b);
            }
        }
        let mut groups: std::collections::BTreeMap<u32, (Vec<u32>, Vec<usize>)> = Default::default();
        for (number, nogood) in self.nogoods.iter().enumerate() {
            let Some(&(v, _)) = nogood.first() else { continue };
            let group = groups.entry(root(&mut parent, v)).or_default();
            group.0.extend(nogood.iter().map(|&(v, _)| v));
            group.1.push(number);
        }
        groups
            .into_values()
            .map(|(mut variables, nogoods)| {
                variables.sort_unstable();
                variables.dedup();
                (variables, nogoods)
            })
            .collect()
    }
}

/// The first of the cheapest options that are allowed.
fn cheapest_of(costs: &[u128], allowed: impl Fn(usize) -> bool) -> u32 {
    let options = (0..costs.len()).filter(|&option| allowed(option));
    options.min_by_key(|&option| costs[option]).unwrap_or(0) as u32
}

struct Search<'a> {
    choices: &'a Choices,
    forbidden: Vec<Vec<bool>>,
    /// The option that a variable must keep below this node.
    required: Vec<Option<u32>>,
    /// For every variable, the cheapest option that is not forbidden.
    options: Vec<u32>,
    /// The nogoods of the component.
    nogoods: Vec<usize>,
    best: Option<(u128, Vec<u32>)>,
    nodes: u64,
    stop: &'a dyn Fn() -> bool,
}

impl Search<'_> {
    fn violated(&self, nogood: usize) -> bool {
        self.choices.nogoods[nogood].iter().all(|&(v, option)| self.options[v as usize] == option)
    }

    /// What it costs to give up the option of a variable; `None` if it must be kept or is the only one left.
    fn increase(&self, v: u32) -> Option<u128> {
        let v = v as usize;
        if self.required[v].is_some() {
            return None;
        }
        let (costs, chosen) = (&self.choices.costs[v], self.options[v] as usize);
        let others = (0..costs.len()).filter(|&option| option != chosen && !self.forbidden[v][option]);
        others.map(|option| costs[option] - costs[chosen]).min()
    }

    fn forbid(&mut self, v: u32) {
        let v = v as usize;
        self.forbidden[v][self.options[v] as usize] = true;
        let forbidden = &self.forbidden[v];
        self.options[v] = cheapest_of(&self.choices.costs[v], |option| !forbidden[option]);
    }

    /// A choice that obeys the nogoods: gives up the option with the lowest cost per violated nogood until none is violated.
    fn greedy(&mut self, variables: &[u32]) -> Vec<u32> {
        let before: Vec<u32> = variables.iter().map(|&v| self.options[v as usize]).collect();
        loop {
            let mut count: std::collections::BTreeMap<u32, u128> = Default::default();
            for &nogood in &self.nogoods {
                if self.violated(nogood) {
                    for &(v, _) in &self.choices.nogoods[nogood] {
                        *count.entry(v).or_default() += 1;
                    }
                }
            }
            let price = |&(v, count): &(u32, u128)| Some((self.increase(v)?, count, v));
            let cheaper = |a: &(u128, u128, u32), b: &(u128, u128, u32)| {
                (a.0.saturating_mul(b.1), a.2).cmp(&(b.0.saturating_mul(a.1), b.2))
            };
            let most = count.len();
            let Some((_, _, v)) = count.into_iter().filter_map(|entry| price(&entry)).min_by(cheaper) else {
                break;
            };
            self.forbid(v);
            // Many pairs at once: a variable for each pass would take quadratic time.
            if most > MOST_LITERALS {
                self.forbid_one_of_each();
            }
        }
        let found = variables.iter().map(|&v| self.options[v as usize]).collect();
        for (&v, option) in variables.iter().zip(before) {
            self.options[v as usize] = option;
            self.forbidden[v as usize].fill(false);
        }
        found
    }

    /// Gives up the cheapest option of every nogood that is violated when its turn comes.
    fn forbid_one_of_each(&mut self) {
        for at in 0..self.nogoods.len() {
            let nogood = self.nogoods[at];
            if self.violated(nogood) {
                let literals = self.choices.nogoods[nogood].iter();
                let prices = literals.filter_map(|&(v, _)| Some((self.increase(v)?, v)));
                if let Some((_, v)) = prices.min() {
                    self.forbid(v);
                }
            }
        }
    }

    /// Depth-first branch and bound. False if nodes or time ran out.
    fn descend(&mut self, variables: &[u32], cost: u128) -> bool {
        self.nodes += 1;
        if self.nodes > NODES || (self.nodes.is_multiple_of(64) && (self.stop)()) {
            return false;
        }
        // Violated nogoods without a variable in common must each be paid for.
        let mut bound = cost;
        let mut paid: std::collections::BTreeSet<u32> = Default::default();
        let mut branch: Option<(u128, usize)> = None;
        for &nogood in &self.nogoods {
            if !self.violated(nogood) {
                continue;
            }
            let literals = &self.choices.nogoods[nogood];
            let Some(least) = literals.iter().filter_map(|&(v, _)| self.increase(v)).min() else {
                return true;
            };
            if literals.iter().all(|&(v, _)| !paid.contains(&v)) {
                paid.extend(literals.iter().map(|&(v, _)| v));
                bound += least;
            }
            if branch.is_none_or(|(most, _)| least > most) {
                branch = Some((least, nogood));
            }
        }
        if self.best.as_ref().is_some_and(|(best, _)| bound >= *best) {
            return true;
        }
        let Some((_, nogood)) = branch else {
            self.best = Some((cost, variables.iter().map(|&v| self.options[v as usize]).collect()));
            return true;
        };
        let literals = &self.choices.nogoods[nogood];
        let mut children: Vec<(u128, u32)> =
            literals.iter().filter_map(|&(v, _)| Some((self.increase(v)?, v))).collect();
        children.sort_unstable();
        let mut whole = true;
        let mut held = Vec::new();
        for (increase, v) in children {
            let option = self.options[v as usize];
            self.forbid(v);
            whole &= self.descend(variables, cost + increase);
            self.forbidden[v as usize][option as usize] = false;
            self.options[v as usize] = option;
            // The later children keep this option, so that no choice is visited twice.
            self.required[v as usize] = Some(option);
            held.push(v);
            if !whole {
                break;
            }
        }
        for v in held {
            self.required[v as usize] = None;
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The cheapest choice by trying all.
    fn brute_force(choices: &Choices) -> u128 {
        let mut best = u128::MAX;
        let mut options = vec![0u32; choices.costs.len()];
        loop {
            let obeys = |nogood: &Vec<Literal>| nogood.iter().any(|&(v, o)| options[v as usize] != o);
            if choices.nogoods.iter().all(obeys) {
                best = best.min(choices.costs.iter().zip(&options).map(|(c, &o)| c[o as usize]).sum());
            }
            let next = (0..options.len()).find(|&v| (options[v] as usize) < choices.costs[v].len() - 1);
            let Some(next) = next else { return best };
            options[..next].fill(0);
            options[next] += 1;
        }
    }

    #[test]
    fn the_cheapest_choice_is_that_of_brute_force() {
        let mut random = Random::new(7, 0);
        for _ in 0..500 {
            let costs: Vec<Vec<u128>> = (0..1 + random.below(6))
                .map(|_| (0..2 + random.below(2)).map(|_| random.below(20) as u128).collect())
                .collect();
            let mut choices = Choices::new(costs);
            for _ in 0..random.below(9) {
                let literals = (0..1 + random.below(3)).map(|_| {
                    let v = random.below(choices.costs.len());
                    (v as u32, random.below(choices.costs[v].len() - 1) as u32)
                });
                let nogood: Vec<Literal> = literals.collect();
                choices.forbid(nogood);
            }
            let chosen = choices.cheapest(&|| false);
            assert_eq!((chosen.cost, chosen.bound), (brute_force(&choices), chosen.cost), "{choices:?}");
            let obeys = |n: &Vec<Literal>| n.iter().any(|&(v, o)| chosen.options[v as usize] != o);
            assert!(choices.nogoods.iter().all(obeys), "{choices:?}");
        }
    }
}
