//! The import graph between a crate's files: its cycles, and violations of a declared order.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The imports between the files of a crate.
#[derive(Debug)]
pub(super) struct Imports {
    /// Paths relative to `src`. Elsewhere a file is its index here.
    files: Vec<String>,
    /// Importing file → imported file → imported names.
    by_file: BTreeMap<usize, BTreeMap<usize, BTreeSet<String>>>,
}

impl Imports {
    pub(super) fn new(files: Vec<String>) -> Self {
        Self { files, by_file: BTreeMap::new() }
    }

    /// Adds an import, unless a file imports from itself.
    pub(super) fn add(&mut self, from: usize, to: usize, name: &str) {
        if from != to {
            let names = self.by_file.entry(from).or_default().entry(to).or_default();
            names.insert(name.to_owned());
        }
    }

    fn imported_by(&self, file: usize) -> impl Iterator<Item = usize> {
        self.by_file.get(&file).into_iter().flatten().map(|(to, _)| *to)
    }

    /// Messages for cycles: one shortest cycle through each file, unless a reported cycle already
    /// contains it.
    pub(super) fn cycles(&self) -> Vec<String> {
        let mut covered = BTreeSet::new();
        let mut cycles = Vec::new();
        for file in 0..self.files.len() {
            if covered.contains(&file) {
                continue;
            }
            if let Some(cycle) = self.shortest_cycle(file) {
                cycles.push(self.describe(&cycle));
                covered.extend(cycle);
            }
        }
        cycles
    }

    /// A shortest cycle through `start`, which comes first; `None` if there is none.
    fn shortest_cycle(&self, start: usize) -> Option<Vec<usize>> {
        let mut reached_from = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(file) = queue.pop_front() {
            for next in self.imported_by(file) {
                if next == start {
                    let mut cycle = vec![file];
                    while let Some(before) = reached_from.get(&cycle[cycle.len() - 1]) {
                        cycle.push(*before);
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if let Entry::Vacant(entry) = reached_from.entry(next) {
                    entry.insert(file);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// A message with a line for each import of a cycle.
    fn describe(&self, cycle: &[usize]) -> String {
        let mut text = format!("a cycle of {} files\n", cycle.len());
        for (place, from) in cycle.iter().enumerate() {
            let to = cycle[(place + 1) % cycle.len()];
            text += &format!("    {}\n", self.describe_import(*from, to));
        }
        text
    }

    fn describe_import(&self, from: usize, to: usize) -> String {
        let names: Vec<&str> = self.by_file[&from][&to].iter().map(String::as_str).collect();
        format!("{} imports {} ({})", self.files[from], self.files[to], names.join(", "))
    }

    /// Checks the order of top-level modules, lowest first. Reports each import from a row that is
    /// not lower, and each module without a row.
    pub(super) fn order_violations(&self, order: &[&[&str]]) -> Vec<String> {
        let row = |module: &str| order.iter().position(|row| row.contains(&module));
        let mut problems = Vec::new();
        for (from, targets) in &self.by_file {
            for to in targets.keys() {
                let (lower, upper) = (top_module(&self.files[*to]), top_module(&self.files[*from]));
                if upper == "lib" || upper == lower {
                    continue;
                }
                let allowed = match (row(upper), row(lower)) {
                    (Some(upper), Some(lower)) => lower < upper,
                    _ => false,
                };
                if !allowed {
                    let import = self.describe_import(*from, *to);
                    problems.push(format!("{import}: {upper} may not import {lower}\n"));
                }
            }
        }
        let modules: BTreeSet<&str> = self.files.iter().map(|file| top_module(file)).collect();
        let missing = modules.iter().filter(|module| **module != "lib" && row(module).is_none());
        problems.extend(missing.map(|module| format!("{module} is not in the declared order\n")));
        problems
    }
}

/// Returns `model` for `model/job.rs` and `model.rs`.
fn top_module(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}
