//! Section 6 and the whole: partitions, row stores, write-back numbers, the requests.

use super::cache::{Cache, Entry, rows_of_partition};
use super::codec::{decode_state, decode_weights, encode_state, encode_weights, weight_bytes};
use super::initial::initial_row;
use super::keys::partition;
use super::optimizer::{Row, state_tensors, step};
use super::{KeySpace, Optimizer, Precision, Push, Quantizer, StatePrecision, Table};
use std::collections::{BTreeMap, BTreeSet};

/// All partitions of a cluster.
#[derive(Clone, Debug)]
pub struct Model {
    partition_bits: u32,
    seed: u32,
    /// The write-back number of each partition, shared by its tables.
    write_backs: Vec<u64>,
    tables: BTreeMap<String, TableData>,
}

#[derive(Clone, Debug)]
struct TableData {
    table: Table,
    /// The keys of a hashed table.
    present: BTreeSet<u64>,
    /// Stored rows, of all partitions: weights, then state.
    stored: BTreeMap<u64, Vec<u8>>,
    /// By partition.
    caches: Vec<Option<Cache>>,
}

/// What a push does to the rows of one table.
struct Step {
    lr: f32,
    t: Option<u64>,
    /// Sums of the gradients.
    gradients: BTreeMap<u64, Vec<f32>>,
}

/// Where a row is rounded: the cluster's seed, the partition and its counter.
struct Rounder<'a> {
    seed: u32,
    partition: u32,
    counter: &'a mut u64,
}

impl Rounder<'_> {
    /// The next write-back number.
    fn take(&mut self) -> u64 {
        let n = *self.counter;
        *self.counter = n.wrapping_add(1);
        n
    }
}

impl TableData {
    /// Rows are f32, weights and state: no cache, no rounding, no numbers.
    fn is_f32(&self) -> bool {
        let t = &self.table;
        let stateless = matches!(t.optimizer, Optimizer::Sgd);
        t.precision == Precision::F32 && (stateless || t.state_precision == StatePrecision::F32)
    }

    fn state_tensors(&self) -> Vec<usize> {
        state_tensors(&self.table.optimizer, self.table.dim)
    }

    /// The row of the store, or the initial one if never stored.
    fn read_store(&self, seed: u32, key: u64) -> Row {
        let t = &self.table;
        let Some(bytes) = self.stored.get(&key) else {
            let rows = match t.keys {
                KeySpace::Dense { rows } => rows,
                KeySpace::Hashed => 0,
            };
            return Row {
                weights: initial_row(&t.initializer, rows, t.dim, seed, &t.name, key),
                state: self.state_tensors().iter().map(|&n| vec![0.0; n]).collect(),
            };
        };
        let mut at = weight_bytes(t.precision, t.quantizer, t.dim);
        let weights = decode_weights(t.precision, t.quantizer, t.dim, &bytes[..at]);
        let mut state = Vec::new();
        for length in self.state_tensors() {
            state.push(decode_state(t.state_precision, length, &bytes[at..]));
            at += length
                * match t.state_precision {
                    StatePrecision::F32 => 4,
                    StatePrecision::Bf16 => 2,
                };
        }
        assert_eq!(at, bytes.len());
        Row { weights, state }
    }

    /// Rounds a row into the store with write-back number `n`; a row of an f32 table is kept as it is.
    fn write_store(&mut self, seed: u32, partition: u32, n: u64, key: u64, row: &Row) {
        let t = &self.table;
        let mut bytes = encode_weights(t.precision, t.quantizer, t.rounding, &row.weights, seed, partition, n);
        for (tensor, values) in row.state.iter().enumerate() {
            bytes.extend(encode_state(t.state_precision, t.rounding, values, seed, tensor as u32, partition, n));
        }
        self.stored.insert(key, bytes);
    }

    /// A push (with a step) or touch (without) of the distinct keys `rows`, all of one partition.
    fn apply(&mut self, rounder: &mut Rounder, rows: &[u64], push: Option<&Step>) {
        let (seed, p) = (rounder.seed, rounder.partition);
        if self.table.keys == KeySpace::Hashed {
            self.present.extend(rows);
        }
        if self.is_f32() {
            if let Some(push) = push {
                for &key in rows {
                    let mut row = self.read_store(seed, key);
                    self.step(push, key, &mut row);
                    self.write_store(seed, p, 0, key, &row);
                }
            }
            return;
        }
        // The cache is taken out and put back at the end.
        let mut cache = self.caches[p as usize].take();
        let mut in_use = BTreeSet::new();
        // First pass.
        if let Some(cache) = &mut cache {
            cache.begin();
            for &key in rows {
                if cache.hit(key) {
                    in_use.insert(key);
                }
            }
        }
        // Second pass.
        let mut conflicts = Vec::new();
        for &key in rows {
            if in_use.contains(&key) {
                continue;
            }
            let room = match &mut cache {
                Some(cache) => cache.make_room(key, &in_use),
                None => None,
            };
            match (room, &mut cache) {
                (Some((way, leaving)), Some(cache)) => {
                    if let Some(entry) = leaving {
                        self.write_back(rounder, &entry);
                    }
                    cache.admit(way, key, self.read_store(seed, key));
                    in_use.insert(key);
                }
                _ => {
                    if push.is_some() {
                        conflicts.push((key, rounder.take()));
                    }
                }
            }
        }
        // Then the steps.
        if let Some(push) = push {
            for &key in rows {
                if !in_use.contains(&key) {
                    continue;
                }
                let cache = cache.as_mut().expect("rows in use are in the cache");
                let entry = cache.get_mut(key).expect("rows in use are in the cache");
                self.step(push, key, &mut entry.row);
                entry.dirty = true;
            }
            for (key, n) in conflicts {
                let mut row = self.read_store(seed, key);
                self.step(push, key, &mut row);
                self.write_store(seed, p, n, key, &row);
            }
        }
        if let Some(cache) = &mut cache {
            cache.end(rows.len() as u64);
        }
        self.caches[p as usize] = cache;
    }

    fn step(&self, push: &Step, key: u64, row: &mut Row) {
        step(&self.table, push.lr, push.t, &push.gradients[&key], row);
    }

    /// An entry leaves the cache: dirty rows are stored, clean ones dropped.
    fn write_back(&mut self, rounder: &mut Rounder, entry: &Entry) {
        if entry.dirty {
            let n = rounder.take();
            self.write_store(rounder.seed, rounder.partition, n, entry.key, &entry.row);
        }
    }

    fn cached(&self, partition: u32, key: u64) -> Option<&Entry> {
        self.caches[partition as usize].as_ref()?.get(key)
    }
}

/// Distinct keys in order of first appearance.
fn first_appearances(keys: &[u64]) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let mut distinct = Vec::new();
    for &key in keys {
        if seen.insert(key) {
            distinct.push(key);
        }
    }
    distinct
}

impl Model {
    pub fn new(partition_bits: u32, seed: u32) -> Model {
        assert!(partition_bits <= 16);
        Model { partition_bits, seed, write_backs: vec![0; 1 << partition_bits], tables: BTreeMap::new() }
    }

    pub fn create(&mut self, t: Table) {
        assert!(!self.tables.contains_key(&t.name), "table exists");
        assert!(t.precision != Precision::Int2 || t.quantizer == Quantizer::Affine, "int2 is affine");
        let mut data =
            TableData { table: t.clone(), present: BTreeSet::new(), stored: BTreeMap::new(), caches: Vec::new() };
        let partitions = 1u64 << self.partition_bits;
        for p in 0..partitions {
            let c = rows_of_partition(t.cache_rows, partitions, p);
            let cache = if data.is_f32() { None } else { Cache::new(t.policy, c) };
            data.caches.push(cache);
        }
        self.tables.insert(t.name, data);
    }

    pub fn drop_table(&mut self, name: &str) {
        self.tables.remove(name).expect("no such table");
    }

    pub fn push(&mut self, p: &[Push]) {
        for push in p {
            let table = &self.data(&push.table).table;
            let dim = table.dim;
            assert_eq!(push.gradients.len(), push.keys.len() * dim);
            // Section 5, step 1.
            let mut gradients: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
            for (i, key) in push.keys.iter().enumerate() {
                let gradient = &push.gradients[i * dim..(i + 1) * dim];
                match gradients.get_mut(key) {
                    None => {
                        gradients.insert(*key, gradient.to_vec());
                    }
                    Some(sum) => {
                        for j in 0..dim {
                            sum[j] += gradient[j];
                        }
                    }
                }
            }
            let step = Step { lr: push.learning_rate.unwrap_or(table.learning_rate), t: push.step, gradients };
            self.apply(&push.table, &push.keys, Some(&step));
        }
    }

    pub fn touch(&mut self, p: &[(String, Vec<u64>)]) {
        for (table, keys) in p {
            self.apply(table, keys, None);
        }
    }

    fn apply(&mut self, table: &str, keys: &[u64], push: Option<&Step>) {
        let mut rows: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for key in first_appearances(keys) {
            rows.entry(self.partition(table, key)).or_default().push(key);
        }
        for (partition, rows) in rows {
            let mut rounder =
                Rounder { seed: self.seed, partition, counter: &mut self.write_backs[partition as usize] };
            let data = self.tables.get_mut(table).expect("no such table");
            data.apply(&mut rounder, &rows, push);
        }
    }

    /// `state`: for each key its state tensors one after the other; 0 if none is given.
    pub fn assign(&mut self, table: &str, keys: &[u64], weights: &[f32], state: Option<&[f32]>) {
        let data = self.data(table);
        let dim = data.table.dim;
        let tensors = data.state_tensors();
        let per_key: usize = tensors.iter().sum();
        assert_eq!(weights.len(), keys.len() * dim);
        assert!(state.is_none_or(|s| s.len() == keys.len() * per_key));
        for (i, &key) in keys.iter().enumerate() {
            // Of a key given twice the last counts.
            if keys[i + 1..].contains(&key) {
                continue;
            }
            let mut row = Row { weights: weights[i * dim..(i + 1) * dim].to_vec(), state: Vec::new() };
            let mut at = i * per_key;
            for &length in &tensors {
                row.state.push(match state {
                    None => vec![0.0; length],
                    Some(s) => s[at..at + length].to_vec(),
                });
                at += length;
            }
            let partition = self.partition(table, key);
            let mut rounder =
                Rounder { seed: self.seed, partition, counter: &mut self.write_backs[partition as usize] };
            let data = self.tables.get_mut(table).expect("no such table");
            if data.table.keys == KeySpace::Hashed {
                data.present.insert(key);
            }
            let cache = data.caches[partition as usize].as_mut();
            if let Some(entry) = cache.and_then(|c| c.get_mut(key)) {
                entry.row = row;
                entry.dirty = true;
            } else {
                let n = if data.is_f32() { 0 } else { rounder.take() };
                data.write_store(self.seed, partition, n, key, &row);
            }
        }
    }

    pub fn remove(&mut self, table: &str, keys: &[u64]) {
        for &key in keys {
            let partition = self.partition(table, key);
            let data = self.tables.get_mut(table).expect("no such table");
            if let Some(cache) = &mut data.caches[partition as usize] {
                cache.remove(key);
            }
            data.stored.remove(&key);
            data.present.remove(&key);
        }
    }

    pub fn pull(&self, table: &str, keys: &[u64]) -> Vec<f32> {
        let mut weights = Vec::new();
        for &key in keys {
            weights.extend(self.row(table, key).weights);
        }
        weights
    }

    /// The state tensors of a row, one after the other.
    pub fn state(&self, table: &str, key: u64) -> Vec<f32> {
        self.row(table, key).state.concat()
    }

    /// `offsets`: the start of each bag in `keys`; the last bag ends with the keys.
    pub fn pooled(&self, table: &str, keys: &[u64], offsets: &[u64], weights: Option<&[f32]>, mean: bool) -> Vec<f32> {
        let dim = self.data(table).table.dim;
        let mut bags = Vec::new();
        for b in 0..offsets.len() {
            let start = offsets[b] as usize;
            let end = match offsets.get(b + 1) {
                Some(&next) => next as usize,
                None => keys.len(),
            };
            let mut bag = vec![0f32; dim];
            // Cached rows first, then the others.
            for cached in [true, false] {
                for i in start..end {
                    if self.is_cached(table, keys[i]) != cached {
                        continue;
                    }
                    let row = self.row(table, keys[i]).weights;
                    for j in 0..dim {
                        match weights {
                            None => bag[j] += row[j],
                            Some(w) => bag[j] += w[i] * row[j],
                        }
                    }
                }
            }
            if mean && end > start {
                for v in &mut bag {
                    *v /= (end - start) as f32;
                }
            }
            bags.extend(bag);
        }
        bags
    }

    pub fn is_cached(&self, table: &str, key: u64) -> bool {
        self.cached(table, key).is_some()
    }

    pub fn is_dirty(&self, table: &str, key: u64) -> bool {
        self.cached(table, key).is_some_and(|e| e.dirty)
    }

    /// The keys present of a hashed table; the size of a dense one.
    pub fn rows(&self, table: &str) -> u64 {
        let data = self.data(table);
        match data.table.keys {
            KeySpace::Dense { rows } => rows,
            KeySpace::Hashed => data.present.len() as u64,
        }
    }

    /// The next write-back number of a partition.
    pub fn write_backs(&self, partition: u32) -> u64 {
        self.write_backs[partition as usize]
    }

    fn data(&self, table: &str) -> &TableData {
        self.tables.get(table).expect("no such table")
    }

    fn partition(&self, table: &str, key: u64) -> u32 {
        let keys = self.data(table).table.keys;
        if let KeySpace::Dense { rows } = keys {
            assert!(key < rows, "key {key} of a dense table of {rows} rows");
        }
        partition(keys, self.partition_bits, key)
    }

    fn cached(&self, table: &str, key: u64) -> Option<&Entry> {
        self.data(table).cached(self.partition(table, key), key)
    }

    /// The row as a pull sees it.
    fn row(&self, table: &str, key: u64) -> Row {
        match self.cached(table, key) {
            Some(entry) => entry.row.clone(),
            None => self.data(table).read_store(self.seed, key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Initializer, Policy, Rounding};
    use super::*;

    fn table(name: &str) -> Table {
        Table {
            name: name.into(),
            dim: 3,
            keys: KeySpace::Hashed,
            precision: Precision::Int8,
            quantizer: Quantizer::Symmetric,
            rounding: Rounding::Stochastic,
            state_precision: StatePrecision::Bf16,
            policy: Policy::Lru,
            cache_rows: 2,
            initializer: Initializer::Constant(1.0),
            optimizer: Optimizer::Adagrad { eps: 0.0 },
            learning_rate: 0.25,
            weight_decay: 0.0,
            clip_norm: None,
        }
    }

    fn push(table: &str, keys: &[u64], g: f32) -> Push {
        Push {
            table: table.into(),
            keys: keys.to_vec(),
            gradients: vec![g; 3 * keys.len()],
            learning_rate: None,
            step: None,
        }
    }

    fn rounded(x: f32, n: u64) -> (Vec<f32>, Vec<f32>) {
        let q = Quantizer::Symmetric;
        let s = Rounding::Stochastic;
        let bytes = encode_weights(Precision::Int8, q, s, &[x; 3], 7, 0, n);
        let state = encode_state(StatePrecision::Bf16, s, &[0.01; 3], 7, 0, 0, n);
        (decode_weights(Precision::Int8, q, 3, &bytes), decode_state(StatePrecision::Bf16, 3, &state))
    }

    #[test]
    fn write_backs_and_conflicts() {
        let mut m = Model::new(0, 7);
        m.create(table("a"));
        // Two rows fit; the third is a conflict and is rounded with number 0.
        m.push(&[push("a", &[1, 2, 3, 1], 0.1)]);
        assert_eq!((m.rows("a"), m.write_backs(0)), (3, 1));
        assert!(m.is_dirty("a", 1) && m.is_dirty("a", 2) && !m.is_cached("a", 3));
        let g = 0.1f32 + 0.1;
        assert_eq!(m.state("a", 1), [g * g; 3]);
        assert_eq!(m.pull("a", &[2]), [0.75; 3]);
        let g2 = 0.1f32 * 0.1;
        let state = encode_state(StatePrecision::Bf16, Rounding::Stochastic, &[g2; 3], 7, 0, 0, 0);
        assert_eq!(m.pull("a", &[3]), rounded(0.75, 0).0);
        assert_eq!(m.state("a", 3), decode_state(StatePrecision::Bf16, 3, &state));
        // A touch brings 3 in: 1, the lower way of equal stamps, is written back with number 1.
        m.touch(&[("a".into(), vec![3])]);
        assert!(!m.is_cached("a", 1) && m.is_cached("a", 3) && !m.is_dirty("a", 3));
        assert_eq!(m.write_backs(0), 2);
        let w = 1.0 - 0.25 * (g / (g * g).sqrt());
        assert_eq!(m.pull("a", &[1]), rounded(w, 1).0);
        // A clean row is dropped without a number.
        m.touch(&[("a".into(), vec![2])]);
        m.touch(&[("a".into(), vec![9])]);
        assert!(!m.is_cached("a", 3) && m.is_cached("a", 9));
        assert_eq!((m.rows("a"), m.write_backs(0)), (4, 2));
        m.remove("a", &[2, 9]);
        assert_eq!((m.rows("a"), m.pull("a", &[2])), (2, vec![1.0; 3]));
        assert_eq!(m.state("a", 2), [0.0; 3]);
    }

    #[test]
    fn assign_order() {
        let mut m = Model::new(0, 7);
        let mut t = table("a");
        t.cache_rows = 0;
        m.create(t);
        let x = [0.3, 0.3, 0.3, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1];
        let s = [5.0, 5.0, 5.0, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01];
        m.assign("a", &[1, 2, 1], &x, Some(&s));
        assert_eq!(m.write_backs(0), 2);
        assert_eq!((m.pull("a", &[2]), m.state("a", 2)), rounded(0.2, 0));
        assert_eq!((m.pull("a", &[1]), m.state("a", 1)), rounded(0.1, 1));
        m.assign("a", &[1], &[0.5; 3], None);
        assert_eq!(m.state("a", 1), [0.0; 3]);
    }

    #[test]
    fn f32_tables_take_no_numbers() {
        let mut m = Model::new(2, 7);
        let mut t = table("a");
        t.precision = Precision::F32;
        t.state_precision = StatePrecision::F32;
        t.keys = KeySpace::Dense { rows: 10 };
        m.create(t.clone());
        m.push(&[push("a", &[0, 5, 9], 0.5)]);
        m.touch(&[("a".into(), vec![1])]);
        assert_eq!(m.pull("a", &[9, 8]), [0.75, 0.75, 0.75, 1.0, 1.0, 1.0]);
        assert!(!m.is_cached("a", 5));
        assert!((0..4).all(|p| m.write_backs(p) == 0));
        // bf16 state makes it a table with a cache: one row in partitions 0 and 1.
        t.name = "b".into();
        t.state_precision = StatePrecision::Bf16;
        m.create(t);
        m.push(&[push("b", &[0, 5, 9, 3], 0.5)]);
        assert!(m.is_cached("b", 0) && m.is_cached("b", 5) && !m.is_cached("b", 9));
        let numbers: Vec<u64> = (0..4).map(|p| m.write_backs(p)).collect();
        assert_eq!(numbers, [0, 1, 0, 1]);
        m.drop_table("b");
        assert_eq!(m.write_backs(3), 1);
    }

    #[test]
    fn pooling_order() {
        let mut m = Model::new(0, 7);
        let mut t = table("a");
        t.precision = Precision::F16;
        t.cache_rows = 1;
        m.create(t);
        m.touch(&[("a".into(), vec![3])]);
        let x = [1e4, 1e4, 1e4, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0];
        m.assign("a", &[1, 2, 3], &x, None);
        // The cached row 3 first: (3e7 + 1e8) + 1, and not (1e8 + 1) + 3e7.
        let w = [1e4f32, 1.0, 1e7];
        let bags = m.pooled("a", &[1, 2, 3], &[0, 3], Some(&w), false);
        let first = (0.0 + 1e7 * 3.0f32 + 1e4 * 1e4) + 1.0;
        assert_eq!(bags, [first, first, first, 0.0, 0.0, 0.0]);
        let bags = m.pooled("a", &[2, 3, 2], &[0, 0, 2], None, true);
        assert_eq!(bags, [0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]);
    }

    const OPTIMIZERS: [Optimizer; 5] = [
        Optimizer::Sgd,
        Optimizer::Adagrad { eps: 1e-8 },
        Optimizer::RowwiseAdagrad { eps: 1e-8 },
        Optimizer::Adam { b1: 0.9, b2: 0.999, eps: 1e-8 },
        Optimizer::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8 },
    ];

    const CODECS: [(Precision, Quantizer); 8] = [
        (Precision::F32, Quantizer::Affine),
        (Precision::F16, Quantizer::Affine),
        (Precision::Bf16, Quantizer::Affine),
        (Precision::Int8, Quantizer::Symmetric),
        (Precision::Int4, Quantizer::Symmetric),
        (Precision::Int8, Quantizer::Affine),
        (Precision::Int4, Quantizer::Affine),
        (Precision::Int2, Quantizer::Affine),
    ];

    /// While everything fits in the cache, a table of any precision is an f32 table; with a small
    /// cache it still keeps its books.
    #[test]
    fn all_kinds() {
        let mut random = 5u64;
        let mut next = |n: u64| {
            random = super::super::keys::mix64(random.wrapping_add(0x9e3779b97f4a7c15));
            random % n
        };
        for optimizer in OPTIMIZERS {
            for (precision, quantizer) in CODECS {
                for policy in [Policy::Lru, Policy::Lfu] {
                    let mut t = table("t");
                    t.initializer = Initializer::Normal(0.0, 0.1);
                    t.optimizer = optimizer;
                    t.weight_decay = 0.01;
                    t.clip_norm = Some(0.5);
                    t.policy = policy;
                    t.cache_rows = 640;
                    (t.precision, t.quantizer) = (precision, quantizer);
                    let mut large = Model::new(1, 3);
                    large.create(t.clone());
                    t.cache_rows = 9;
                    let mut small = Model::new(1, 3);
                    small.create(t.clone());
                    (t.precision, t.state_precision) = (Precision::F32, StatePrecision::F32);
                    let mut exact = Model::new(1, 3);
                    exact.create(t.clone());
                    for step in 1..=20 {
                        let keys: Vec<u64> = (0..12).map(|_| next(40)).collect();
                        let mut p = push("t", &keys, 0.0);
                        p.step = Some(step);
                        for g in &mut p.gradients {
                            *g = next(2001) as f32 / 1000.0 - 1.0;
                        }
                        let key = next(40);
                        for m in [&mut large, &mut small, &mut exact] {
                            m.push(std::slice::from_ref(&p));
                            m.touch(&[("t".into(), vec![next(40)])]);
                            m.remove("t", &[key]);
                        }
                    }
                    for key in 0..40 {
                        assert_eq!(large.pull("t", &[key]), exact.pull("t", &[key]));
                        assert_eq!(large.state("t", key), exact.state("t", key));
                        assert!(small.pull("t", &[key]).iter().all(|v| v.is_finite()));
                        assert!(!small.is_dirty("t", key) || small.is_cached("t", key));
                    }
                    assert_eq!(large.write_backs(0), 0);
                    let plain = precision == Precision::F32 && optimizer == Optimizer::Sgd;
                    assert_eq!(small.write_backs(0) == 0, plain);
                }
            }
        }
    }
}
