//! A change as bytes and back: `proto/hotrow/v1/log.proto`.
//!
//! Writing happens under the lock that orders changes, so gradients are copied once, straight into the group.

use std::borrow::Cow;

use bytes::{BufMut as _, Bytes};
use prost::Message as _;
use prost::encoding::{encoded_len_varint, key_len};

use crate::engine::{Alteration, Assign, Change, ClientId, Origin, Push, Remove, Touch};
use crate::error::{Error, Result};
use crate::framing::field_head;
use crate::proto::log_record::Change as Logged;
use crate::{proto, wire};

/// Field numbers of the protos.
const RECORD_PUSH: u32 = 3;
const PUSH_TABLES: u32 = 1;
const TABLE_KEYS: u32 = 2;
const TABLE_GRADIENTS: u32 = 3;

/// Appends a change: its length, and then the change.
pub fn encode(change: &Change<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.put_u32_le(0);
    match *change {
        Change::Push(pushes) => encode_push(None, pushes, out),
        Change::PushOnce(origin, pushes) => encode_push(Some(origin), pushes, out),
        _ => {
            let record = proto::LogRecord { change: Some(logged(change)) };
            record.encode(out).expect("the buffer grows");
        }
    }
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

fn field_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

fn encode_push(origin: Option<Origin>, pushes: &[Push<'_>], out: &mut Vec<u8>) {
    let rest = proto::PushRequest {
        client_id: origin.map_or_else(Bytes::new, |origin| client_bytes(origin.client)),
        sequence: origin.map_or(0, |origin| origin.sequence),
        ..Default::default()
    };
    let tables: Vec<(proto::TablePush, usize)> = pushes
        .iter()
        .map(|push| {
            let head = proto::TablePush {
                table: push.table.into(),
                learning_rate: push.learning_rate,
                step: push.step,
                ..Default::default()
            };
            let keys = field_len(TABLE_KEYS, size_of_val(push.keys));
            let len = head.encoded_len() + keys + field_len(TABLE_GRADIENTS, size_of_val(push.gradients));
            (head, len)
        })
        .collect();
    let len = rest.encoded_len() + tables.iter().map(|(_, len)| field_len(PUSH_TABLES, *len)).sum::<usize>();
    out.reserve(field_len(RECORD_PUSH, len));
    field_head(out, RECORD_PUSH, len);
    rest.encode(out).expect("the buffer grows");
    for ((head, len), push) in tables.iter().zip(pushes) {
        field_head(out, PUSH_TABLES, *len);
        head.encode(out).expect("the buffer grows");
        for (tag, bytes) in
            [(TABLE_KEYS, bytemuck::cast_slice(push.keys)), (TABLE_GRADIENTS, bytemuck::cast_slice(push.gradients))]
        {
            let bytes: &[u8] = bytes;
            field_head(out, tag, bytes.len());
            out.extend_from_slice(bytes);
        }
    }
}

/// The changes that are small or rare.
fn logged(change: &Change<'_>) -> Logged {
    match *change {
        Change::Create(spec) => Logged::Create(wire::spec_to(spec)),
        Change::Drop(table) => Logged::Drop(table.into()),
        Change::Push(_) | Change::PushOnce(..) => unreachable!("pushes are written by hand"),
        Change::Touch(touches) => {
            let tables =
                touches.iter().map(|t| proto::TableTouch { table: t.table.into(), keys: wire::packed(t.keys) });
            Logged::Touch(proto::TouchRequest { tables: tables.collect(), topology_version: 0 })
        }
        Change::Assign(assigns) => {
            let tables = assigns.iter().map(|assign| proto::AssignRowsRequest {
                table: assign.table.into(),
                keys: wire::packed(assign.keys),
                weights: wire::packed(assign.weights),
                state: assign.state.map_or_else(Bytes::new, wire::packed),
            });
            Logged::Assign(proto::LoggedAssign { tables: tables.collect() })
        }
        Change::Remove(removes) => {
            let tables = removes
                .iter()
                .map(|remove| proto::RemoveRowsRequest { table: remove.table.into(), keys: wire::packed(remove.keys) });
            Logged::Remove(proto::LoggedRemove { tables: tables.collect() })
        }
        Change::Alter(table, alteration) => Logged::Alter(proto::AlterTableRequest {
            table: table.into(),
            learning_rate: alteration.learning_rate,
            weight_decay: alteration.weight_decay,
            clip_norm: alteration.clip_norm.map(|norm| norm.unwrap_or(0.0)),
            local: true,
        }),
        Change::OpenClient(client) => Logged::OpenClient(client_bytes(client)),
        Change::CloseClient(client) => Logged::CloseClient(client_bytes(client)),
    }
}

fn client_bytes(client: ClientId) -> Bytes {
    Bytes::copy_from_slice(&client.0.to_be_bytes())
}

fn client(bytes: &[u8]) -> Result<ClientId> {
    let id = bytes.try_into().map_err(|_| unreadable("a client id has not 16 bytes"))?;
    Ok(ClientId(u128::from_be_bytes(id)))
}

fn unreadable(reason: impl std::fmt::Display) -> Error {
    Error::NotOrdered(format!("the record cannot be read: {reason}"))
}

/// Reads a change and hands it to `apply`.
pub fn decode<T>(record: Bytes, apply: impl FnOnce(&Change<'_>) -> Result<T>) -> Result<T> {
    let record = proto::LogRecord::decode(record).map_err(unreadable)?;
    match record.change.ok_or_else(|| unreadable("it is of a kind that this version does not know"))? {
        Logged::Create(spec) => apply(&Change::Create(&wire::spec_from(&spec)?)),
        Logged::Drop(table) => apply(&Change::Drop(&table)),
        Logged::Push(request) => {
            let numbers = request
                .tables
                .iter()
                .map(|push| {
                    let keys: Cow<'_, [u64]> = wire::numbers(&push.table, "keys", &push.keys)?;
                    let gradients: Cow<'_, [f32]> = wire::numbers(&push.table, "gradients", &push.gradients)?;
                    Ok((keys, gradients))
                })
                .collect::<Result<Vec<_>>>()?;
            let pushes = wire::pushes(&request.tables, &numbers);
            match request.client_id.is_empty() {
                true => apply(&Change::Push(&pushes)),
                false => {
                    let origin = Origin { client: client(&request.client_id)?, sequence: request.sequence };
                    apply(&Change::PushOnce(origin, &pushes))
                }
            }
        }
        Logged::Touch(request) => {
            let keys = all_keys(request.tables.iter().map(|touch| (touch.table.as_str(), &touch.keys)))?;
            let tables = request.tables.iter().zip(&keys);
            apply(&Change::Touch(&tables.map(|(touch, keys)| Touch { table: &touch.table, keys }).collect::<Vec<_>>()))
        }
        Logged::Assign(request) => {
            let keys = all_keys(request.tables.iter().map(|assign| (assign.table.as_str(), &assign.keys)))?;
            let numbers = request
                .tables
                .iter()
                .map(|assign| {
                    let weights: Cow<'_, [f32]> = wire::numbers(&assign.table, "weights", &assign.weights)?;
                    let state: Cow<'_, [f32]> = wire::numbers(&assign.table, "state", &assign.state)?;
                    Ok((weights, (!assign.state.is_empty()).then_some(state)))
                })
                .collect::<Result<Vec<_>>>()?;
            let tables = request.tables.iter().zip(&keys).zip(&numbers);
            let assigns: Vec<Assign<'_>> = tables
                .map(|((assign, keys), (weights, state))| Assign {
                    table: &assign.table,
                    keys,
                    weights,
                    state: state.as_deref(),
                })
                .collect();
            apply(&Change::Assign(&assigns))
        }
        Logged::Remove(request) => {
            let keys = all_keys(request.tables.iter().map(|remove| (remove.table.as_str(), &remove.keys)))?;
            let tables = request.tables.iter().zip(&keys);
            let removes: Vec<_> = tables.map(|(remove, keys)| Remove { table: &remove.table, keys }).collect();
            apply(&Change::Remove(&removes))
        }
        Logged::Alter(request) => {
            let alteration = Alteration {
                learning_rate: request.learning_rate,
                weight_decay: request.weight_decay,
                clip_norm: request.clip_norm.map(|norm| (norm > 0.0).then_some(norm)),
            };
            apply(&Change::Alter(&request.table, alteration))
        }
        Logged::OpenClient(id) => apply(&Change::OpenClient(client(&id)?)),
        Logged::CloseClient(id) => apply(&Change::CloseClient(client(&id)?)),
    }
}

fn all_keys<'a>(tables: impl Iterator<Item = (&'a str, &'a Bytes)>) -> Result<Vec<Cow<'a, [u64]>>> {
    tables.map(|(table, keys)| wire::numbers(table, "keys", keys)).collect()
}
