//! What is saved while changes go on is the state at the cut, bit for bit: whole or as a chain of differences, onto any
//! number of engines; and what is restored goes on as if it had never stopped.

use crate::support;
use crate::support::changes::{KEYS, Owned, engine, engine_with, two_tables};
use crate::support::random::{Random, key};
use hotrow::{
    CacheBudget, ClientId, Engine, EngineConfig, Error, Lsn, Optimizer, Origin, Piece, Policy, Precision, Push,
    Quantizer, Remove, Row, SavedTable, TableSpec, Unsettled,
};

const PARTITIONS: u32 = 8;

/// A saved state: what a file would hold.
struct Saved {
    lsn: Lsn,
    tables: Vec<SavedTable>,
    /// By partition.
    pieces: Vec<(u32, Vec<Piece>)>,
}

/// Saves, with a turn for the caller before every piece.
fn save(engine: &Engine, whole: bool, mut between: impl FnMut()) -> (Saved, Unsettled) {
    let mut snapshot = engine.cut(whole).unwrap();
    let mut saved = Saved { lsn: snapshot.lsn(), tables: snapshot.tables().to_vec(), pieces: Vec::new() };
    between();
    while let Some(piece) = snapshot.next_piece() {
        if let Piece::Partition { id, .. } = piece {
            saved.pieces.push((id, Vec::new()));
        }
        saved.pieces.last_mut().unwrap().1.push(piece);
        between();
    }
    (saved, snapshot.done())
}

/// Fills an engine from a chain of saved states.
fn restore(engine: &Engine, chain: &[&Saved], change: impl Fn(&mut SavedTable)) {
    let last = chain[chain.len() - 1];
    let mut tables = last.tables.clone();
    tables.iter_mut().for_each(change);
    let restore = engine.restore(&tables).unwrap();
    let owned = engine.config().owned.clone().unwrap_or_else(|| (0..PARTITIONS).collect());
    for id in owned {
        for (i, link) in chain.iter().enumerate() {
            let still =
                |table: &SavedTable| last.tables.iter().any(|t| t.spec.name == table.spec.name && t.born == table.born);
            let names: Vec<Option<&str>> =
                link.tables.iter().map(|table| still(table).then_some(table.spec.name.as_str())).collect();
            let mut partition = restore.partition(id, &names).unwrap();
            let (_, pieces) = link.pieces.iter().find(|(p, _)| *p == id).unwrap();
            for piece in pieces {
                partition.piece(piece.clone(), i + 1 == chain.len()).unwrap();
            }
        }
    }
    restore.finish(last.lsn, true);
}

fn restored(chain: &[&Saved]) -> Engine {
    let engine = engine(PARTITIONS, 1);
    restore(&engine, chain, |_| {});
    engine
}

/// A client's pushes, one after the other.
fn push_once(engine: &Engine, sequence: u64, tables: &[TableSpec]) {
    let origin = Origin { client: ClientId(77), sequence };
    let gradients = vec![0.25; 3 * tables[0].dim];
    let keys = [sequence % KEYS, 1, 2];
    let push =
        Push { table: &tables[0].name, keys: &keys, gradients: &gradients, step: Some(sequence), ..Push::default() };
    engine.push_once(origin, &[push]).unwrap();
}

#[test]
fn what_is_saved_is_the_state_at_the_cut_and_goes_on_as_if_never_stopped() {
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let case = format!("{format:?} {policy} {optimizer:?}");
        let tables = two_tables(format, policy, optimizer);
        let live = engine_with(&tables, PARTITIONS, 1);
        live.open_client(ClientId(77)).unwrap();
        let mut random = Random(seed as u64);
        for i in 0..15 {
            Owned::random(&mut random, &tables, 40).apply(&live).unwrap();
            push_once(&live, i + 1, &tables);
        }
        let at_the_cut = live.digests();
        let lsn = live.last_lsn();
        let mut sequence = 15;
        let (saved, _) = save(&live, true, || {
            Owned::random(&mut random, &tables, 40).apply(&live).unwrap();
            sequence += 1;
            push_once(&live, sequence, &tables);
        });
        assert_ne!(live.digests(), at_the_cut, "{case}: the changes must matter");
        let copy = restored(&[&saved]);
        assert_eq!(copy.digests(), at_the_cut, "{case}");
        assert_eq!((copy.last_lsn(), saved.lsn), (lsn, lsn));
        // Everything that it took of the budget is given back.
        let gone = restored(&[&saved]);
        assert!(gone.memory_used() > 0);
        tables.iter().for_each(|table| assert!(gone.drop_table(&table.name).is_ok()));
        assert_eq!(gone.memory_used(), 0, "{case}");

        // Two that were restored go the same way. (That they go the way of one that was never saved is the next test.)
        let second = restored(&[&saved]);
        for i in 0..10 {
            let change = Owned::random(&mut random, &tables, 60);
            for engine in [&copy, &second] {
                change.apply(engine).unwrap();
                // A push that was applied before the cut is known, one after it is not.
                push_once(engine, 15, &tables);
                push_once(engine, 16 + i, &tables);
            }
        }
        assert_eq!(copy.digests(), second.digests(), "{case}");
        assert_eq!(copy.last_lsn(), second.last_lsn());
    }
}

/// Large pushes to tables of full-precision rows are applied to all partitions in the order of the request.
#[test]
fn large_pushes_to_f32_tables_are_saved_like_small_ones() {
    let spec = TableSpec::dense("t", 4000, 16).precision(Precision::F32).optimizer(Optimizer::rowwise_adagrad(), 0.1);
    let [live, twin] = [(); 2].map(|()| engine_with(std::slice::from_ref(&spec), PARTITIONS, 1));
    let mut random = Random(31);
    let push = |random: &mut Random, first: u64, count: u64| {
        let keys: Vec<u64> = (first..first + count).map(|i| i * 1237 % 4000).collect();
        let gradients = random.numbers(keys.len() * spec.dim);
        live.push(&[Push { table: "t", keys: &keys, gradients: &gradients, ..Push::default() }]).unwrap();
        for (keys, gradients) in keys.chunks(500).zip(gradients.chunks(500 * spec.dim)) {
            twin.push(&[Push { table: "t", keys, gradients, ..Push::default() }]).unwrap();
        }
    };
    // First some rows have been trained, then all of them; and from the first link on changes are noted.
    let mut chain = Vec::new();
    for trained in [1500, 4000, 2000] {
        push(&mut random, 0, trained);
        let at_the_cut = live.digests();
        assert_eq!(at_the_cut, twin.digests());
        let (saved, unsettled) = save(&live, chain.is_empty(), || push(&mut random, 1000, 1100));
        live.settle(unsettled, true);
        chain.push(saved);
        let links: Vec<&Saved> = chain.iter().collect();
        assert_eq!(restored(&links).digests(), at_the_cut, "{trained} rows pushed before link {}", chain.len());
    }
}

#[test]
fn restored_and_undisturbed_engines_stay_the_same() {
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let tables = two_tables(format, policy, optimizer);
        let live = engine_with(&tables, PARTITIONS, 2);
        let mut random = Random(900 + seed as u64);
        for _ in 0..10 {
            Owned::random(&mut random, &tables, 50).apply(&live).unwrap();
        }
        let (saved, _) = save(&live, true, || {});
        let resumed = restored(&[&saved]);
        for _ in 0..10 {
            let change = Owned::random(&mut random, &tables, 50);
            assert_eq!(change.apply(&live).unwrap(), change.apply(&resumed).unwrap());
        }
        assert_eq!(live.digests(), resumed.digests(), "{format:?} {policy} {optimizer:?}");
    }
}

#[test]
fn a_chain_of_ten_differences_equals_the_live_state() {
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let case = format!("{format:?} {policy} {optimizer:?}");
        let tables = two_tables(format, policy, optimizer);
        let live = engine_with(&tables, PARTITIONS, 1);
        let mut random = Random(500 + seed as u64);
        for _ in 0..10 {
            Owned::random(&mut random, &tables, 60).apply(&live).unwrap();
        }
        let (base, unsettled) = save(&live, true, || {});
        live.settle(unsettled, true);
        let mut chain = vec![base];
        for link in 0..10u64 {
            let mut spec = TableSpec::hashed("short-lived", 3 + link as usize / 4);
            spec.cache = CacheBudget::Rows(10);
            live.create(&spec).unwrap();
            for i in 0..3 {
                Owned::random(&mut random, &tables, 25).apply(&live).unwrap();
                let keys: Vec<u64> = (0..8).map(|k| key(&spec, (k + i + link) % KEYS)).collect();
                let gradients = vec![0.5; keys.len() * spec.dim];
                live.push(&[Push { table: "short-lived", keys: &keys, gradients: &gradients, ..Push::default() }])
                    .unwrap();
            }
            for table in &tables {
                let gone = random.keys(table, KEYS, 5);
                live.remove(&[Remove { table: &table.name, keys: &gone }]).unwrap();
            }
            let at_the_cut = live.digests();
            // One that comes to nothing, given up half-way, or at its end, or when it was complete, takes nothing from the next.
            let mut given_up = live.cut(link % 2 == 0).unwrap();
            (0..link * 7).for_each(|_| _ = given_up.next_piece());
            drop(given_up);
            let mut given_up = live.cut(false).unwrap();
            while given_up.next_piece().is_some() {}
            drop(given_up);
            let (_, unsettled) = save(&live, link % 3 == 0, || {});
            live.settle(unsettled, false);

            let mut left = 12;
            let (saved, unsettled) = save(&live, false, || {
                if left > 0 {
                    left -= 1;
                    Owned::random(&mut random, &tables, 10).apply(&live).unwrap();
                }
                if left == 5 && link % 4 == 3 {
                    // Dropped while it is being saved, and made again with another dim.
                    live.drop_table("short-lived").unwrap();
                }
            });
            live.settle(unsettled, true);
            chain.push(saved);
            let links: Vec<&Saved> = chain.iter().collect();
            assert_eq!(restored(&links).digests(), at_the_cut, "{case}, link {link}");
        }
        // The differences are differences: a small change gives a small link.
        let (_, unsettled) = save(&live, false, || {});
        live.settle(unsettled, true);
        live.push(&[Push {
            table: "dense",
            keys: &[1],
            gradients: &vec![0.1; tables[0].dim],
            step: Some(3),
            ..Push::default()
        }])
        .unwrap();
        let (small, _) = save(&live, false, || {});
        let rows = |saved: &Saved| -> usize {
            let bytes = |piece: &Piece| if let Piece::Rows(rows) = piece { rows.bytes.len() } else { 0 };
            saved.pieces.iter().flat_map(|(_, pieces)| pieces).map(bytes).sum()
        };
        assert!(rows(&small) < rows(&chain[0]) / 10, "{case}: {} of {}", rows(&small), rows(&chain[0]));
    }
}

#[test]
fn any_number_of_engines_takes_over() {
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let tables = two_tables(format, policy, optimizer);
        let live = engine_with(&tables, PARTITIONS, 1);
        let mut random = Random(300 + seed as u64);
        for _ in 0..12 {
            Owned::random(&mut random, &tables, 60).apply(&live).unwrap();
        }
        let (saved, _) = save(&live, true, || {});
        for engines in [1, 3, 8] {
            let mut digests = Vec::new();
            for i in 0..engines {
                let owned = (0..PARTITIONS).filter(|p| p % engines == i).collect();
                let config = EngineConfig { owned: Some(owned), ..live.config().clone() };
                let engine = Engine::new(config).unwrap();
                restore(&engine, &[&saved], |_| {});
                digests.extend(engine.digests());
            }
            digests.sort_unstable();
            assert_eq!(digests, live.digests(), "{engines} engines, {format:?} {policy} {optimizer:?}");
        }
    }
}

/// Every row of a table.
fn rows(engine: &Engine, table: &TableSpec) -> Vec<Row> {
    (0..KEYS).map(|small| engine.inspect(&table.name, key(table, small)).unwrap()).collect()
}

#[test]
fn another_cache_size_loses_nothing_but_precision() {
    for (seed, (format, policy, optimizer)) in support::matrix().into_iter().enumerate() {
        let case = format!("{format:?} {policy} {optimizer:?}");
        let tables = two_tables(format, policy, optimizer);
        let live = engine_with(&tables, PARTITIONS, 1);
        let mut random = Random(100 + seed as u64);
        for _ in 0..12 {
            Owned::random(&mut random, &tables, 60).apply(&live).unwrap();
        }
        let (saved, _) = save(&live, true, || {});
        let with_cache = |cache: u64| {
            let engine = engine(PARTITIONS, 1);
            restore(&engine, &[&saved], |table| {
                table.spec.cache = CacheBudget::Rows(cache);
                table.current.cache = CacheBudget::Rows(cache);
            });
            engine
        };
        let (larger, smaller, none) = (with_cache(600), with_cache(16), with_cache(0));
        for table in &tables {
            let before = rows(&live, table);
            for (row, now) in before.iter().zip(rows(&larger, table)) {
                assert_eq!((&row.weights, &row.state, row.cached), (&now.weights, &now.state, now.cached), "{case}");
            }
            for (cache, engine) in [(16, &smaller), (0, &none)] {
                let mut kept = 0;
                let now = rows(engine, table);
                for (row, now) in before.iter().zip(&now) {
                    kept += u64::from(now.cached);
                    assert!(row.cached || !now.cached, "{case}: only what was cached is");
                    if now.cached || !row.dirty {
                        assert_eq!((&row.weights, &row.state), (&now.weights, &now.state), "{case}");
                    } else {
                        assert!(now.stored);
                        let largest = row.weights.iter().fold(0.0f32, |max, w| max.max(w.abs()));
                        for (a, b) in row.weights.iter().zip(&now.weights) {
                            let range = if format.0 == Precision::Int2 { 2.0 } else { 1.0 };
                            assert!((a - b).abs() <= range * largest, "{case}: {a} became {b}");
                        }
                    }
                }
                assert!(kept <= cache, "{case}: {kept} rows in a cache of {cache}");
                assert!(format.0 == Precision::F32 || cache == 0 || kept > 0, "{case}");
            }
        }
        // Surplus rows take write-back numbers, as if they had been evicted.
        let numbers = |engine: &Engine| (0..PARTITIONS).map(|p| engine.write_backs(p).unwrap()).sum::<u64>();
        let dirty: usize = tables.iter().map(|table| rows(&live, table).iter().filter(|row| row.dirty).count()).sum();
        assert_eq!(numbers(&none) - numbers(&live), dirty as u64, "{case}");
        assert_eq!(numbers(&larger), numbers(&live), "{case}");
        // And it goes on: what was rounded on the way in is in the next checkpoint, also if that is a difference.
        for engine in [&larger, &smaller, &none] {
            let (difference, unsettled) = save(engine, false, || {});
            engine.settle(unsettled, true);
            assert_eq!(restored(&[&saved, &difference]).digests(), engine.digests(), "{case}");
            Owned::random(&mut random, &tables, 60).apply(engine).unwrap();
            let (second, _) = save(engine, false, || {});
            assert_eq!(restored(&[&saved, &difference, &second]).digests(), engine.digests(), "{case}");
        }
    }
}

#[test]
fn one_save_at_a_time_and_a_broken_state_is_refused() {
    let tables = two_tables((Precision::Int8, Quantizer::Symmetric), Policy::Lru, support::optimizers()[2]);
    let live = engine_with(&tables, PARTITIONS, 1);
    let mut random = Random(1);
    for _ in 0..12 {
        Owned::random(&mut random, &tables, 60).apply(&live).unwrap();
    }
    let snapshot = live.cut(true).unwrap();
    assert_eq!(live.cut(true).err(), Some(Error::SaveUnderWay));
    drop(snapshot);
    let (saved, _) = save(&live, true, || {});

    let refused = |break_it: fn(&mut Piece)| {
        let engine = engine(PARTITIONS, 1);
        let restore = engine.restore(&saved.tables).unwrap();
        let names: Vec<Option<&str>> = saved.tables.iter().map(|table| Some(table.spec.name.as_str())).collect();
        for (id, pieces) in &saved.pieces {
            let mut partition = restore.partition(*id, &names).unwrap();
            for piece in pieces {
                let mut piece = piece.clone();
                break_it(&mut piece);
                if let Err(error) = partition.piece(piece, true) {
                    assert!(matches!(error, Error::NotRestored(_)), "{error}");
                    return true;
                }
            }
        }
        false
    };
    type Break = fn(&mut Piece);
    let breaks: [(&str, Break); 9] = [
        ("another partition", |piece| {
            if let Piece::Partition { id, .. } = piece {
                *id += 1
            }
        }),
        ("an unknown table", |piece| {
            if let Piece::Part { table } = piece {
                *table += 9
            }
        }),
        ("too few bytes", |piece| {
            if let Piece::Rows(rows) = piece {
                _ = rows.bytes.pop()
            }
        }),
        ("too many bytes", |piece| {
            if let Piece::Rows(rows) = piece {
                rows.bytes.push(0)
            }
        }),
        ("too many rows", |piece| {
            if let Piece::Rows(rows) = piece {
                rows.count = 70_000
            }
        }),
        ("too few keys", |piece| {
            if let Piece::Rows(rows) = piece {
                _ = rows.keys.pop()
            }
        }),
        ("missing rows", |piece| {
            if let Piece::Index { rows, .. } = piece {
                *rows += 70_000
            }
        }),
        ("rows that are not there", |piece| {
            if let Piece::Directory(image) = piece {
                image.tags.fill(u32::MAX)
            }
        }),
        ("too few numbers", |piece| {
            if let Piece::Slots { values, .. } = piece {
                _ = values.pop()
            }
        }),
    ];
    for (what, broken) in breaks {
        assert!(refused(broken), "{what} was not noticed");
    }
    assert!(!refused(|_| {}), "unbroken it is taken");
    assert!(matches!(live.restore(&saved.tables).err(), Some(Error::NotRestored(_))), "an engine with tables");
}
