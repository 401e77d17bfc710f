//! Tokens and roles.

use std::path::Path;

use http::HeaderMap;
use subtle::ConstantTimeEq as _;
use tonic::Status;

/// What a caller may do. Each role may do what the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Pull rows and look at tables.
    Read,
    /// Push gradients.
    Write,
    /// Make, change and drop tables, set and remove rows, drain.
    Admin,
}

impl Role {
    /// The role that a method asks for. `None`: anybody.
    pub fn needed(path: &str) -> Option<Role> {
        let (service, method) = path.strip_prefix('/').and_then(|path| path.split_once('/'))?;
        Some(match (service, method) {
            ("grpc.health.v1.Health", _) => return None,
            ("grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection", _) => Role::Read,
            // The pushes of a stream are checked one by one.
            ("hotrow.v1.Data", "Pull" | "Stream") => Role::Read,
            ("hotrow.v1.Data", _) => Role::Write,
            ("hotrow.v1.Tables", "Describe" | "List") => Role::Read,
            ("hotrow.v1.Admin", "Stats" | "Topology" | "ScanKeys" | "ReadRows" | "InspectRow") => Role::Read,
            ("hotrow.v1.Admin", "Flush") => Role::Write,
            _ => Role::Admin,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "admin",
        }
    }

    /// Refuses a caller whose role is not enough.
    pub fn require(self, needed: Role) -> Result<(), Status> {
        if self >= needed {
            return Ok(());
        }
        let (has, needs) = (self.name(), needed.name());
        Err(Status::permission_denied(format!("this token has the role {has}, this call needs {needs}")))
    }
}

/// The tokens of a file.
#[derive(Default)]
pub struct Tokens {
    tokens: Vec<(Role, Vec<u8>)>,
}

impl Tokens {
    /// Reads lines of a role and a token. `#` starts a comment.
    pub fn read(path: &Path) -> Result<Tokens, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut tokens = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let role = match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["read", token] => (Role::Read, token),
                ["write", token] => (Role::Write, token),
                ["admin", token] => (Role::Admin, token),
                _ => {
                    let place = format!("{}:{}", path.display(), number + 1);
                    return Err(format!("{place}: a line is a role (read, write or admin) and a token"));
                }
            };
            tokens.push((role.0, role.1.as_bytes().to_vec()));
        }
        if tokens.is_empty() {
            return Err(format!("{}: no tokens, nobody could get in", path.display()));
        }
        Ok(Tokens { tokens })
    }

    /// The role of a request. Every token is compared, each in constant time, so that how long it takes says nothing.
    pub fn role(&self, headers: &HeaderMap) -> Result<Role, Status> {
        let given =
            headers.get(http::header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let Some(given) = given else {
            return Err(Status::unauthenticated("a token is needed: send the metadata 'authorization: Bearer TOKEN'"));
        };
        let mut role = None;
        for (its_role, token) in &self.tokens {
            if bool::from(token.as_slice().ct_eq(given)) {
                role = role.max(Some(*its_role));
            }
        }
        role.ok_or_else(|| Status::unauthenticated("unknown token"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_roles_and_files_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, "# ours\nread aaa\nadmin bbb # boss\n").unwrap();
        let tokens = Tokens::read(&path).unwrap();
        let role = |value: &str| {
            let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, value.parse().unwrap())]);
            tokens.role(&headers).map_err(|status| status.code())
        };
        assert_eq!(role("Bearer aaa"), Ok(Role::Read));
        assert_eq!(role("Bearer bbb"), Ok(Role::Admin));
        for wrong in ["Bearer aa", "Bearer aaaa", "Bearer ", "aaa", "Basic aaa"] {
            assert_eq!(role(wrong), Err(tonic::Code::Unauthenticated), "{wrong}");
        }
        for (text, reason) in [("reed aaa", ":1: a line is"), ("", "no tokens"), ("read a b", ":1: a line is")] {
            std::fs::write(&path, text).unwrap();
            assert!(Tokens::read(&path).err().unwrap().contains(reason));
        }
    }

    #[test]
    fn unknown_methods_need_the_highest_role() {
        assert_eq!(Role::needed("/hotrow.v1.Data/Pull"), Some(Role::Read));
        assert_eq!(Role::needed("/hotrow.v1.Data/Push"), Some(Role::Write));
        assert_eq!(Role::needed("/hotrow.v1.Tables/Drop"), Some(Role::Admin));
        assert_eq!(Role::needed("/hotrow.v1.Tables/Whatever"), Some(Role::Admin));
        assert_eq!(Role::needed("/grpc.health.v1.Health/Check"), None);
        assert!(Role::Write.require(Role::Read).is_ok());
        assert_eq!(Role::Read.require(Role::Write).unwrap_err().code(), tonic::Code::PermissionDenied);
    }
}
