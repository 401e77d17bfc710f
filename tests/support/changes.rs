//! Changes as owned data: they can be drawn at random, recorded by a log hook, split by key, and applied again.

use hotrow::{
    Alteration, Assign, CacheBudget, Change, ClientId, Engine, EngineConfig, Lsn, Optimizer, Origin, Policy, Precision,
    Push, Quantizer, Remove, Result, StatePrecision, TableSpec, Touch,
};

use super::random::Random;

/// Small numbers that the keys of [`two_tables`] stand for.
pub const KEYS: u64 = 300;

/// What a change brings for one table; which fields mean something depends on the change.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub table: String,
    pub keys: Vec<u64>,
    /// Gradients of a push, weights of an assignment.
    pub numbers: Vec<f32>,
    pub state: Option<Vec<f32>>,
    pub learning_rate: Option<f32>,
    pub step: Option<u64>,
}

/// A [`Change`] that owns its data.
#[derive(Clone, Debug)]
pub enum Owned {
    Create(TableSpec),
    Drop(String),
    Push(Vec<Rows>),
    PushOnce(Origin, Vec<Rows>),
    Touch(Vec<Rows>),
    Assign(Vec<Rows>),
    Remove(Vec<Rows>),
    Alter(String, Alteration),
    OpenClient(ClientId),
    CloseClient(ClientId),
}

impl Owned {
    /// A copy of a change, as a log would keep it.
    pub fn record(change: &Change<'_>) -> Owned {
        let keys = |table: &str, keys: &[u64]| Rows { table: table.into(), keys: keys.to_vec(), ..Rows::default() };
        match *change {
            Change::Create(spec) => Owned::Create(spec.clone()),
            Change::Drop(name) => Owned::Drop(name.into()),
            Change::Push(pushes) | Change::PushOnce(_, pushes) => {
                let rows = |push: &Push<'_>| Rows {
                    numbers: push.gradients.to_vec(),
                    learning_rate: push.learning_rate,
                    step: push.step,
                    ..keys(push.table, push.keys)
                };
                let rows = pushes.iter().map(rows).collect();
                match *change {
                    Change::PushOnce(origin, _) => Owned::PushOnce(origin, rows),
                    _ => Owned::Push(rows),
                }
            }
            Change::Touch(touches) => Owned::Touch(touches.iter().map(|t| keys(t.table, t.keys)).collect()),
            Change::Assign(assigns) => {
                let rows = |assign: &Assign<'_>| Rows {
                    numbers: assign.weights.to_vec(),
                    state: assign.state.map(<[f32]>::to_vec),
                    ..keys(assign.table, assign.keys)
                };
                Owned::Assign(assigns.iter().map(rows).collect())
            }
            Change::Remove(removes) => Owned::Remove(removes.iter().map(|r| keys(r.table, r.keys)).collect()),
            Change::Alter(name, alteration) => Owned::Alter(name.into(), alteration),
            Change::OpenClient(client) => Owned::OpenClient(client),
            Change::CloseClient(client) => Owned::CloseClient(client),
        }
    }

    /// Applies it.
    pub fn apply(&self, engine: &Engine) -> Result<Lsn> {
        match self {
            Owned::Create(spec) => engine.create(spec),
            Owned::Drop(name) => engine.drop_table(name),
            Owned::Push(rows) => engine.push(&rows.iter().map(Rows::as_push).collect::<Vec<_>>()),
            Owned::PushOnce(origin, rows) => {
                engine.push_once(*origin, &rows.iter().map(Rows::as_push).collect::<Vec<_>>()).map(|pushed| pushed.lsn)
            }
            Owned::Alter(name, alteration) => engine.alter(name, *alteration),
            Owned::OpenClient(client) => engine.open_client(*client),
            Owned::CloseClient(client) => engine.close_client(*client),
            Owned::Touch(rows) => engine.touch(&rows.iter().map(Rows::as_touch).collect::<Vec<_>>()),
            Owned::Assign(rows) => engine.assign(&rows.iter().map(Rows::as_assign).collect::<Vec<_>>()),
            Owned::Remove(rows) => engine.remove(&rows.iter().map(Rows::as_remove).collect::<Vec<_>>()),
        }
    }

    /// The same change with only the keys that `keep` picks, in the same order.
    pub fn only(&self, keep: impl Fn(&str, u64) -> bool) -> Owned {
        let only = |rows: &[Rows]| rows.iter().map(|rows| rows.only(&keep)).collect();
        match self {
            Owned::Create(_) | Owned::Drop(_) | Owned::Alter(..) | Owned::OpenClient(_) | Owned::CloseClient(_) => {
                self.clone()
            }
            Owned::Push(rows) => Owned::Push(only(rows)),
            Owned::PushOnce(origin, rows) => Owned::PushOnce(*origin, only(rows)),
            Owned::Touch(rows) => Owned::Touch(only(rows)),
            Owned::Assign(rows) => Owned::Assign(only(rows)),
            Owned::Remove(rows) => Owned::Remove(only(rows)),
        }
    }

    /// A push, touch, assignment or removal of `count` keys of one or both tables.
    pub fn random(random: &mut Random, tables: &[TableSpec], count: usize) -> Owned {
        let mut chosen: Vec<&TableSpec> = tables.iter().collect();
        let turn = random.below(chosen.len() as u64) as usize;
        chosen.rotate_left(turn);
        chosen.truncate(1 + random.below(chosen.len() as u64) as usize);
        let kind = random.below(12);
        let rows = chosen.into_iter().map(|table| Rows::random(random, table, count, kind)).collect();
        match kind {
            0 => Owned::Remove(rows),
            1 => Owned::Assign(rows),
            2 | 3 => Owned::Touch(rows),
            _ => Owned::Push(rows),
        }
    }
}

impl Rows {
    fn random(random: &mut Random, table: &TableSpec, count: usize, kind: u64) -> Rows {
        let keys = random.keys(table, KEYS, count);
        let (tensors, len) = table.optimizer.state(table.dim);
        let state = random.numbers(count * tensors * len).into_iter().map(f32::abs).collect();
        Rows {
            table: table.name.clone(),
            keys,
            numbers: if kind == 0 { Vec::new() } else { random.numbers(count * table.dim) },
            state: (random.below(2) == 0).then_some(state),
            learning_rate: (random.below(2) == 0).then(|| random.unit().abs()),
            step: Some(1 + random.below(100)),
        }
    }

    fn only(&self, keep: impl Fn(&str, u64) -> bool) -> Rows {
        let pick = |numbers: &[f32]| {
            let width = numbers.len() / self.keys.len().max(1);
            let kept = (0..self.keys.len()).filter(|&i| keep(&self.table, self.keys[i]));
            kept.flat_map(|i| numbers[i * width..][..width].to_vec()).collect()
        };
        Rows {
            keys: self.keys.iter().copied().filter(|&key| keep(&self.table, key)).collect(),
            numbers: pick(&self.numbers),
            state: self.state.as_deref().map(pick),
            ..self.clone()
        }
    }

    pub fn as_push(&self) -> Push<'_> {
        let Rows { table, keys, numbers, learning_rate, step, .. } = self;
        Push { table, keys, gradients: numbers, learning_rate: *learning_rate, step: *step }
    }

    pub fn as_touch(&self) -> Touch<'_> {
        Touch { table: &self.table, keys: &self.keys }
    }

    pub fn as_assign(&self) -> Assign<'_> {
        Assign { table: &self.table, keys: &self.keys, weights: &self.numbers, state: self.state.as_deref() }
    }

    pub fn as_remove(&self) -> Remove<'_> {
        Remove { table: &self.table, keys: &self.keys }
    }
}

/// A dense and a hashed table whose caches hold a part of [`KEYS`]. Between them they use both state precisions,
/// weight decay, clipping, and rows longer and shorter than a group of 64.
pub fn two_tables(format: (Precision, Quantizer), policy: Policy, optimizer: Optimizer) -> Vec<TableSpec> {
    let common =
        |spec: TableSpec| spec.precision(format.0).quantizer(format.1).policy(policy).optimizer(optimizer, 0.05);
    vec![
        common(TableSpec::dense("dense", KEYS, 66)).cache(CacheBudget::Rows(60)).weight_decay(0.01),
        common(TableSpec::hashed("hashed", 5))
            .cache(CacheBudget::Rows(40))
            .clip_norm(1.0)
            .state_precision(StatePrecision::Bf16),
    ]
}

/// An engine that keeps small tables at their own precision.
pub fn engine(partitions: u32, threads: usize) -> Engine {
    let config = EngineConfig { partitions, threads, seed: 7, small_table_bytes: 0, ..crate::support::config() };
    Engine::new(config).expect("the configuration is valid")
}

/// An engine with these tables.
pub fn engine_with(tables: &[TableSpec], partitions: u32, threads: usize) -> Engine {
    let engine = engine(partitions, threads);
    tables.iter().for_each(|table| {
        engine.create(table).expect("the spec is valid");
    });
    engine
}
