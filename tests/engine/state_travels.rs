//! Optimizer state travels with its row: into the cache, out of it, and back.

use crate::support;
use crate::support::bits;
use crate::support::changes::engine_with;
use crate::support::random::Random;
use hotrow::{
    Assign, CacheBudget, Engine, Optimizer, Policy, Precision, Push, Quantizer, StatePrecision, TableSpec, Touch,
};

const KEY: u64 = 5;

/// Every table that has state and a cache, beside the key's own a few keys that push it out.
fn tables(state: StatePrecision) -> Vec<TableSpec> {
    let stateful = |case: &((Precision, Quantizer), Policy, Optimizer)| case.2 != Optimizer::Sgd;
    let spec = |(format, policy, optimizer): ((Precision, Quantizer), Policy, Optimizer)| {
        TableSpec::dense("t", 20, 9)
            .precision(format.0)
            .quantizer(format.1)
            .policy(policy)
            .optimizer(optimizer, 0.1)
            .state_precision(state)
            .cache(CacheBudget::Rows(4))
    };
    let all = support::matrix().into_iter().filter(stateful).map(spec);
    all.filter(|spec| spec.precision != Precision::F32 || state == StatePrecision::Bf16).collect()
}

fn push(engine: &Engine, gradients: &[f32], step: u64) {
    engine.push(&[Push { table: "t", keys: &[KEY], gradients, step: Some(step), ..Push::default() }]).unwrap();
}

fn touch(engine: &Engine, keys: &[u64]) {
    engine.touch(&[Touch { table: "t", keys }]).unwrap();
}

fn state(engine: &Engine) -> Vec<f32> {
    engine.inspect("t", KEY).unwrap().state
}

fn is_cached(engine: &Engine) -> bool {
    engine.inspect("t", KEY).unwrap().cached
}

/// An engine whose row has some state, dirty in the cache.
fn trained(spec: &TableSpec, seed: u64) -> Engine {
    let engine = engine_with(std::slice::from_ref(spec), 1, 1);
    for step in 1..=5 {
        push(&engine, &Random(seed + step).row(spec.dim, 1.0), step);
    }
    assert!(is_cached(&engine) && state(&engine).iter().all(|&x| x != 0.0));
    engine
}

/// Brings in others until the row is gone; with lfu they must come often.
fn push_out(engine: &Engine) {
    for _ in 0..100 {
        touch(engine, &[6, 7, 8, 9]);
        if !is_cached(engine) {
            return;
        }
    }
    panic!("the row stays in the cache");
}

fn bring_in(engine: &Engine) {
    for _ in 0..1000 {
        touch(engine, &[KEY]);
        if is_cached(engine) {
            return;
        }
    }
    panic!("the row does not come into the cache");
}

#[test]
fn f32_state_is_kept_exactly() {
    for (seed, spec) in tables(StatePrecision::F32).iter().enumerate() {
        let engine = trained(spec, seed as u64);
        let before = bits(&state(&engine));
        for _ in 0..3 {
            push_out(&engine);
            assert_eq!(bits(&state(&engine)), before, "in the row store: {spec:?}");
            bring_in(&engine);
            assert_eq!(bits(&state(&engine)), before, "in the cache again: {spec:?}");
        }
    }
}

#[test]
fn bf16_state_goes_to_a_neighbour() {
    let mut moved_up = 0;
    let mut moved_down = 0;
    for (seed, spec) in tables(StatePrecision::Bf16).iter().enumerate() {
        let engine = trained(spec, seed as u64);
        let before = bits(&state(&engine));
        push_out(&engine);
        let stored = bits(&state(&engine));
        for (&exact, &rounded) in before.iter().zip(&stored) {
            let lower = exact & 0xffff_0000;
            let neighbours = if exact == lower { [lower, lower] } else { [lower, lower + 0x1_0000] };
            assert!(neighbours.contains(&rounded), "{exact:x} became {rounded:x}: {spec:?}");
            moved_up += u32::from(rounded > exact);
            moved_down += u32::from(rounded < exact);
        }
        bring_in(&engine);
        assert_eq!(bits(&state(&engine)), stored, "in the cache again: {spec:?}");
    }
    assert!(moved_up > 100 && moved_down > 100, "state is rounded both ways: {moved_up} up, {moved_down} down");
}

#[test]
fn a_row_that_came_back_is_stepped_with_its_state() {
    let all = [tables(StatePrecision::F32), tables(StatePrecision::Bf16)].concat();
    for (seed, spec) in all.iter().enumerate() {
        let engine = trained(spec, seed as u64);
        push_out(&engine);
        bring_in(&engine);
        // An f32 table that is given the same row must take the same step.
        let exact = TableSpec { state_precision: StatePrecision::F32, ..spec.clone().precision(Precision::F32) };
        let exact = engine_with(&[exact], 1, 1);
        let row = engine.inspect("t", KEY).unwrap();
        exact.assign(&[Assign { table: "t", keys: &[KEY], weights: &row.weights, state: Some(&row.state) }]).unwrap();
        let gradients = Random(99).row(spec.dim, 1.0);
        push(&engine, &gradients, 6);
        push(&exact, &gradients, 6);
        let (row, expected) = (engine.inspect("t", KEY).unwrap(), exact.inspect("t", KEY).unwrap());
        assert_eq!((row.weights, row.state), (expected.weights, expected.state), "{spec:?}");
    }
}
