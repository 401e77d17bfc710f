//! A push of a client is applied once, however often it comes, and refused when nobody can know whether it was.

use hotrow::{
    Alteration, ClientId, Engine, EngineConfig, Error, Initializer, Optimizer, Origin, Precision, Pull, Push, TableSpec,
};

const KEYS: [u64; 4] = [0, 1, 130, 999];

fn engine(owned: Option<Vec<u32>>) -> Engine {
    let engine = Engine::new(EngineConfig { owned, ..crate::support::config() }).unwrap();
    for spec in [TableSpec::dense("dense", 1000, 2), TableSpec::hashed("hashed", 2)] {
        let spec = spec.precision(Precision::F32).initializer(Initializer::Zeros).optimizer(Optimizer::Sgd, 1.0);
        engine.create(&spec).unwrap();
    }
    engine
}

fn push<'a>(table: &'a str, keys: &'a [u64], gradients: &'a [f32]) -> Push<'a> {
    Push { table, keys, gradients, ..Push::default() }
}

fn rows(engine: &Engine, table: &str, keys: &[u64]) -> Vec<f32> {
    let mut out = vec![0.0; 2 * keys.len()];
    engine.pull(&[Pull { table, keys }], &mut out).unwrap();
    out
}

const CLIENT: ClientId = ClientId(7);

fn origin(sequence: u64) -> Origin {
    Origin { client: CLIENT, sequence }
}

#[test]
fn a_retry_is_recognised_and_changes_nothing() {
    for table in ["dense", "hashed"] {
        let engine = engine(None);
        engine.open_client(CLIENT).unwrap();
        let gradients = [-1.0; 8];
        for sequence in [1, 2, 5, 3] {
            assert!(!engine.push_once(origin(sequence), &[push(table, &KEYS, &gradients)]).unwrap().duplicate);
        }
        let (digests, lsn) = (engine.digests(), engine.last_lsn());
        for sequence in [5, 1, 2, 3, 3] {
            let pushed = engine.push_once(origin(sequence), &[push(table, &KEYS, &gradients)]).unwrap();
            assert!(pushed.duplicate && pushed.lsn == lsn);
        }
        assert_eq!(engine.digests(), digests);
        assert_eq!(engine.last_lsn(), lsn);
        assert_eq!(rows(&engine, table, &KEYS), [4.0; 8]);
        // 4 was skipped, and may still come.
        assert!(!engine.push_once(origin(4), &[push(table, &KEYS, &gradients)]).unwrap().duplicate);
        assert_eq!(rows(&engine, table, &KEYS), [5.0; 8]);
    }
}

#[test]
fn what_cannot_be_known_is_refused() {
    let engine = engine(None);
    let gradients = [-1.0; 8];
    let push = [push("dense", &KEYS, &gradients)];
    assert_eq!(engine.push_once(origin(1), &push), Err(Error::UnknownClient(CLIENT)));
    engine.open_client(CLIENT).unwrap();
    engine.push_once(origin(100), &push).unwrap();
    let digests = engine.digests();
    for sequence in [35, 1, 0] {
        let refused = engine.push_once(origin(sequence), &push);
        assert!(matches!(refused, Err(Error::SequenceForgotten { .. })), "{sequence}: {refused:?}");
    }
    assert_eq!(engine.digests(), digests);
    assert!(!engine.push_once(origin(36), &push).unwrap().duplicate);
    engine.close_client(CLIENT).unwrap();
    assert_eq!(engine.push_once(origin(101), &push), Err(Error::UnknownClient(CLIENT)));
    // The same id again is a new client.
    engine.open_client(CLIENT).unwrap();
    assert!(!engine.push_once(origin(100), &push).unwrap().duplicate);
}

#[test]
fn partitions_remember_one_by_one() {
    // A push reaches keys of partition 0, then the same push with keys of partitions 0 and 1, as after a move of
    // partitions between shards: the part that was applied is not applied again.
    let engine = engine(None);
    engine.open_client(CLIENT).unwrap();
    engine.push_once(origin(1), &[push("dense", &[0, 128], &[-1.0; 4])]).unwrap();
    let pushed = engine.push_once(origin(1), &[push("dense", &[0, 128, 1, 129], &[-1.0; 8])]).unwrap();
    assert!(!pushed.duplicate);
    assert_eq!(rows(&engine, "dense", &[0, 128, 1, 129]), [1.0; 8]);
}

#[test]
fn a_refused_push_is_not_remembered() {
    let engine = engine(None);
    engine.open_client(CLIENT).unwrap();
    let nan = [f32::NAN; 8];
    assert!(engine.push_once(origin(1), &[push("dense", &KEYS, &nan)]).is_err());
    assert!(!engine.push_once(origin(1), &[push("dense", &KEYS, &[-1.0; 8])]).unwrap().duplicate);
    engine.set_log(Box::new(|_, _| Err("the disk is full".into())));
    assert!(matches!(engine.push_once(origin(2), &[push("dense", &KEYS, &[-1.0; 8])]), Err(Error::NotOrdered(_))));
    engine.set_log(Box::new(|_, _| Ok(())));
    assert!(!engine.push_once(origin(2), &[push("dense", &KEYS, &[-1.0; 8])]).unwrap().duplicate);
    assert_eq!(rows(&engine, "dense", &KEYS), [2.0; 8]);
}

#[test]
fn clients_are_limited_and_opening_twice_is_fine() {
    let engine = Engine::new(EngineConfig { max_clients: 2, ..crate::support::config() }).unwrap();
    engine.open_client(ClientId(1)).unwrap();
    let lsn = engine.open_client(ClientId(2)).unwrap();
    assert_eq!(engine.open_client(ClientId(2)), Ok(lsn));
    assert_eq!(engine.open_client(ClientId(3)), Err(Error::TooManyClients(2)));
    engine.close_client(ClientId(1)).unwrap();
    engine.open_client(ClientId(3)).unwrap();
    assert_eq!(engine.open_clients(), 2);
}

#[test]
fn an_alteration_counts_for_the_pushes_after_it() {
    let engine = engine(None);
    let gradients = [-1.0; 8];
    engine.push(&[push("dense", &KEYS, &gradients)]).unwrap();
    engine.alter("dense", Alteration { learning_rate: Some(0.5), ..Alteration::default() }).unwrap();
    engine.push(&[push("dense", &KEYS, &gradients)]).unwrap();
    assert_eq!(rows(&engine, "dense", &KEYS), [1.5; 8]);
    let spec = engine.spec("dense").unwrap();
    assert_eq!(spec.learning_rate, 0.5);
    // Both the table as it was made and as it is now count as the same.
    engine.create(&spec).unwrap();
    engine.create(&hotrow::TableSpec { learning_rate: 1.0, ..spec.clone() }).unwrap();
    assert!(engine.create(&hotrow::TableSpec { learning_rate: 0.7, ..spec }).is_err());
    let bad = Alteration { weight_decay: Some(f32::NAN), ..Alteration::default() };
    assert!(matches!(engine.alter("dense", bad), Err(Error::InvalidSpec { .. })));
    assert!(matches!(engine.alter("nope", Alteration::default()), Err(Error::UnknownTable(_))));
}

#[test]
fn a_scan_gives_every_trained_key_once() {
    let engine = engine(None);
    for table in ["dense", "hashed"] {
        let keys: Vec<u64> = (0..500).map(|i| i * 2).collect();
        engine.push(&[push(table, &keys, &vec![1.0; 1000])]).unwrap();
        let (mut found, mut cursor) = (Vec::new(), Some(Default::default()));
        while let Some(from) = cursor {
            let (some, next) = engine.scan(table, from, 7).unwrap();
            assert!(some.len() <= 7);
            found.extend(some);
            cursor = next;
        }
        found.sort_unstable();
        assert_eq!(found, keys);
    }
}
