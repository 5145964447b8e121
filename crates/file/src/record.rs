//! What one key's file says: who holds it, until when, which fence came last, and who waits.
//!
//! Only the form is here; what a step does to a record is in `rules`, how it reaches the disk in
//! `step`.

use holdtight_core::{Key, KeyForm, Owner, Secret};

use crate::boot::BootId;
use crate::frame::{self, Damage, Magic, PAGE, Writer};

/// The first bytes of a key's file.
pub(crate) const MAGIC: Magic = *b"HTky";

/// Names one process that uses the store, or one waiter's pipe: random, never used again.
pub(crate) type ProcessId = [u8; 16];

/// The most waiters that stand in the page itself; the rest stand behind it.
const IN_PAGE: usize = 32;

/// The most waiters that a record lists: more than a machine has processes.
pub(crate) const MAX_WAITERS: usize = 65_536;

/// Before the waiters behind the page: the checksum of what follows, the number of the record they
/// belong to, how many.
const REST_HEADER: usize = 16;

/// The longest field of an owner that is kept, in bytes.
const FIELD_BYTES: usize = 128;

/// Marks a field that is not there. No length is this large.
const ABSENT: u8 = u8::MAX;

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Counts the writes, so that the later of two copies is known.
    pub(crate) number: u64,
    pub(crate) key: Key,
    /// The last fence that was minted; zero if none ever was.
    pub(crate) fence: u64,
    /// The boot in which this was written, and when on its clock.
    pub(crate) boot: BootId,
    pub(crate) written_at: u64,
    pub(crate) grant: Option<Grant>,
    /// Who wants to hear of a release, first come first.
    pub(crate) waiters: Vec<ProcessId>,
    /// Who was called to take the key that was freed, and until when others let it come.
    pub(crate) called: Option<(ProcessId, u64)>,
}

/// Who holds the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) secret: Secret,
    /// The process that must be alive for the grant to be; `None` if the lease alone counts.
    pub(crate) process: Option<ProcessId>,
    pub(crate) granted_at: u64,
    pub(crate) expires_at: u64,
    pub(crate) owner: OwnerBytes,
}

/// An owner as it is kept: written at every grant, read only when somebody asks who holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerBytes(Vec<u8>);

impl Record {
    /// A key that nobody ever held.
    pub(crate) fn fresh(key: Key, boot: BootId, now: u64) -> Self {
        let (grant, waiters, called) = (None, Vec::new(), None);
        Self { number: 0, key, fence: 0, boot, written_at: now, grant, waiters, called }
    }

    /// Puts the record into `page` and gives the bytes to write.
    pub(crate) fn encode<'p>(&self, page: &'p mut [u8; PAGE]) -> &'p [u8] {
        let mut to = Writer::new(page);
        to.put_fixed(&self.fence.to_le_bytes());
        to.put_fixed(&self.boot.id);
        to.put_fixed(&[u8::from(self.boot.genuine)]);
        to.put_fixed(&self.written_at.to_le_bytes());
        put_text(&mut to, self.key.as_str());
        #[expect(clippy::cast_possible_truncation, reason = "at most IN_PAGE")]
        to.put_fixed(&[self.waiters.len().min(IN_PAGE) as u8]);
        for waiter in self.waiters.iter().take(IN_PAGE) {
            to.put_fixed(waiter);
        }
        match &self.grant {
            None => to.put_fixed(&[0]),
            Some(grant) => {
                to.put_fixed(&[if grant.process.is_some() { 2 } else { 1 }]);
                to.put_fixed(&grant.process.unwrap_or_default());
                to.put_fixed(&grant.granted_at.to_le_bytes());
                to.put_fixed(&grant.expires_at.to_le_bytes());
                put_text(&mut to, grant.secret.expose());
                to.put(&grant.owner.0);
            }
        }
        if let Some((called, until)) = &self.called {
            to.put_fixed(called);
            to.put_fixed(&until.to_le_bytes());
        }
        to.finish(MAGIC, self.number)
    }

    /// The waiters for whom there is no room in the page, as they stand behind it; `None` if there
    /// are none.
    ///
    /// They carry the number of the record that they belong to. If they are not of the same write
    /// as the page, because a process was killed in between, they do not count: these waiters ask
    /// again by their timers, and are listed then.
    pub(crate) fn encode_rest(&self) -> Option<Vec<u8>> {
        let rest = self.waiters.get(IN_PAGE..).filter(|rest| !rest.is_empty())?;
        let mut bytes = vec![0; 4];
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(u32::try_from(rest.len()).unwrap_or(0).to_le_bytes());
        bytes.extend(rest.as_flattened());
        let sum = crc32fast::hash(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        Some(bytes)
    }

    /// Whether there may be waiters behind the page.
    pub(crate) fn may_have_rest(&self) -> bool {
        self.waiters.len() == IN_PAGE
    }

    /// Adds the waiters behind the page, if they belong to this record. `read` fills a buffer from
    /// so many bytes on.
    pub(crate) fn add_rest(&mut self, read: impl Fn(&mut [u8], u64) -> bool) {
        let mut bytes = vec![0; REST_HEADER];
        if !read(&mut bytes, 0) || bytes[4..12] != self.number.to_le_bytes() {
            return;
        }
        let count = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        if count > MAX_WAITERS {
            return;
        }
        bytes.resize(REST_HEADER + count * size_of::<ProcessId>(), 0);
        if !read(&mut bytes[REST_HEADER..], REST_HEADER as u64)
            || bytes[..4] != crc32fast::hash(&bytes[4..]).to_le_bytes()
        {
            return;
        }
        let (rest, _) = bytes[REST_HEADER..].as_chunks();
        self.waiters.extend_from_slice(rest);
    }

    /// Reads what [`encode`](Self::encode) wrote. Everything else is damage, never a panic.
    pub(crate) fn decode(page: &[u8]) -> Result<Self, Damage> {
        Self::decode_of(page, None)
    }

    /// The same where the key is known, if it is that key: then it need not be examined again.
    pub(crate) fn decode_of(page: &[u8], expected: Option<&Key>) -> Result<Self, Damage> {
        let (number, payload) = frame::read(page, MAGIC)?;
        let mut from = Reader(payload);
        from.record(number, expected).filter(|_| from.0.is_empty()).ok_or(Damage::Unreadable)
    }
}

impl OwnerBytes {
    pub(crate) fn of(owner: &Owner) -> Self {
        let mut to = Vec::with_capacity(128);
        to.push(u8::from(owner.pid.is_some()));
        to.extend_from_slice(&owner.pid.unwrap_or_default().to_le_bytes());
        for field in [&owner.host, &owner.user, &owner.command, &owner.reason] {
            match field {
                None => to.push(ABSENT),
                Some(text) => {
                    let text = cut(text);
                    #[expect(clippy::cast_possible_truncation, reason = "at most FIELD_BYTES")]
                    to.push(text.len() as u8);
                    to.extend_from_slice(text.as_bytes());
                }
            }
        }
        Self(to)
    }

    /// For display: what is not understood is left out, and nothing in it can move a cursor.
    pub(crate) fn to_owner(&self) -> Owner {
        let mut owner = Owner::unknown();
        let mut from = Reader(&self.0);
        if let (Some(present), Some(pid)) = (from.byte(), from.number::<4>()) {
            owner.pid = (present == 1).then(|| u32::from_le_bytes(pid));
        }
        for field in [&mut owner.host, &mut owner.user, &mut owner.command, &mut owner.reason] {
            if let Field::Text(bytes) = from.field() {
                let shown = |c: char| if c.is_control() { '\u{FFFD}' } else { c };
                *field = Some(String::from_utf8_lossy(bytes).chars().map(shown).collect());
            }
        }
        owner
    }
}

/// The longest head of `text` that is kept: whole characters.
fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(FIELD_BYTES)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn put_text(to: &mut Writer<'_>, text: &str) {
    #[expect(clippy::cast_possible_truncation, reason = "keys and secrets are bounded")]
    to.put_fixed(&(text.len() as u16).to_le_bytes());
    to.put(text.as_bytes());
}

/// One field of an owner.
enum Field<'b> {
    Text(&'b [u8]),
    Absent,
    /// The bytes end too early.
    Cut,
}

/// Takes values from the front of bytes; `None` where they end too early.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u64(&mut self) -> Option<u64> {
        self.number().map(u64::from_le_bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.number().map(|[byte]: [u8; 1]| byte)
    }

    fn text(&mut self) -> Option<&'b str> {
        let length = u16::from_le_bytes(self.number()?);
        std::str::from_utf8(self.take(usize::from(length))?).ok()
    }

    /// A field of an owner, as far as there is one.
    fn field(&mut self) -> Field<'b> {
        match self.byte() {
            None => Field::Cut,
            Some(ABSENT) => Field::Absent,
            Some(length) => self.take(usize::from(length)).map_or(Field::Cut, Field::Text),
        }
    }

    fn record(&mut self, number: u64, expected: Option<&Key>) -> Option<Record> {
        let fence = self.u64()?;
        let boot = BootId { id: self.number()?, genuine: self.byte()? == 1 };
        let written_at = self.u64()?;
        let key = self.text()?;
        let key = match expected.filter(|expected| expected.as_str() == key) {
            Some(expected) => expected.clone(),
            None => Key::with_form(key, KeyForm::Verbatim).ok()?,
        };
        let count = usize::from(self.byte()?);
        if count > IN_PAGE {
            return None;
        }
        let waiters = (0..count).map(|_| self.number()).collect::<Option<Vec<_>>>()?;
        let grant = match self.byte()? {
            0 => None,
            state @ (1 | 2) => Some(self.grant(state == 2)?),
            _ => return None,
        };
        let called = match self.0.len() {
            24 => Some((self.number()?, self.u64()?)),
            _ => None,
        };
        Some(Record { number, key, fence, boot, written_at, grant, waiters, called })
    }

    fn grant(&mut self, bound: bool) -> Option<Grant> {
        let process: ProcessId = self.number()?;
        let (granted_at, expires_at) = (self.u64()?, self.u64()?);
        let secret = Secret::parse(self.text()?).ok()?;
        let owner = self.0;
        self.take(5)?;
        for _ in 0..4 {
            if matches!(self.field(), Field::Cut) {
                return None;
            }
        }
        let owner = OwnerBytes(owner[..owner.len() - self.0.len()].to_vec());
        Some(Grant { secret, process: bound.then_some(process), granted_at, expires_at, owner })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::COPY;

    fn held() -> Record {
        let owner = Owner::current().with_reason("nightly backup");
        Record {
            number: 3,
            fence: 1_790_000_000_000_000,
            grant: Some(Grant {
                secret: Secret::generate().unwrap(),
                process: Some([9; 16]),
                granted_at: 5,
                expires_at: 500,
                owner: OwnerBytes::of(&owner),
            }),
            waiters: vec![[1; 16], [2; 16]],
            called: Some(([2; 16], 77)),
            ..Record::fresh(Key::new("user:123").unwrap(), BootId { id: [7; 16], genuine: true }, 5)
        }
    }

    #[test]
    fn records_are_read_back() {
        let mut page = [0; PAGE];
        let held = held();
        assert_eq!(Record::decode(held.encode(&mut page)).unwrap(), held);
        let detached = Record {
            grant: held.grant.clone().map(|g| Grant { process: None, ..g }),
            ..held.clone()
        };
        assert_eq!(Record::decode(detached.encode(&mut page)).unwrap(), detached);
        let free = Record { grant: None, waiters: vec![], called: None, ..held };
        assert_eq!(Record::decode(free.encode(&mut page)).unwrap(), free);
    }

    #[test]
    fn the_largest_record_fits_into_one_page() {
        let long = "é".repeat(300);
        let mut owner = Owner::current().with_reason(&*long).with_command(&*long);
        (owner.host, owner.user) = (Some(long.clone()), Some(long));
        let secret = Secret::parse(&"s".repeat(Secret::MAX_BYTES)).unwrap();
        let mut record = held();
        record.key = Key::new(&"k".repeat(Key::MAX_BYTES)).unwrap();
        record.waiters = vec![[3; 16]; IN_PAGE];
        record.grant =
            record.grant.map(|grant| Grant { secret, owner: OwnerBytes::of(&owner), ..grant });
        let mut page = [0; PAGE];
        let bytes = record.encode(&mut page);
        assert!(bytes.len() <= PAGE && bytes.len() > COPY);
        assert_eq!(Record::decode(bytes).unwrap(), record);
    }

    #[test]
    fn every_flipped_byte_and_every_cut_gives_the_record_or_damage() {
        let record = held();
        let mut page = [0; PAGE];
        let whole = record.encode(&mut page).to_vec();
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x55;
            assert_eq!(Record::decode(&flipped).as_ref(), Ok(&record), "byte {at}");
            match Record::decode(&whole[..at]) {
                Ok(read) => assert_eq!(read, record, "cut at {at}"),
                Err(damage) => assert_eq!(damage, Damage::Unreadable),
            }
        }
    }

    #[test]
    fn waiters_behind_the_page_are_read_if_they_belong_to_it() {
        for count in [0, 1, IN_PAGE, IN_PAGE + 1, 300] {
            let id = |n: usize| [u8::try_from(n % 251).unwrap(); 16];
            let record = Record { waiters: (0..count).map(id).collect(), ..held() };
            let (mut page, rest) = ([0; PAGE], record.encode_rest().unwrap_or_default());
            let read = |rest: &[u8], number| {
                let mut found = Record::decode(record.clone().encode(&mut page.clone())).unwrap();
                found.number = number;
                if found.may_have_rest() {
                    found.add_rest(|to, at| {
                        let from = rest.get(usize::try_from(at).unwrap()..).unwrap_or_default();
                        from.get(..to.len()).map(|from| to.copy_from_slice(from)).is_some()
                    });
                }
                found.waiters
            };
            assert_eq!(read(&rest, record.number), record.waiters);
            let first = &record.waiters[..count.min(IN_PAGE)];
            assert_eq!(read(&rest, record.number + 1), first, "of another write");
            for at in 0..rest.len() {
                let mut damaged = rest.clone();
                damaged[at] ^= 0x41;
                assert_eq!(read(&damaged, record.number), first, "byte {at}");
                assert_eq!(read(&rest[..at], record.number), first, "cut at {at}");
            }
            page.fill(0);
        }
    }

    #[test]
    fn an_owner_is_kept_for_display_and_made_harmless() {
        let owner = Owner::current().with_reason("release 7");
        assert_eq!(OwnerBytes::of(&owner).to_owner(), owner);
        let mut hostile = Owner::unknown();
        hostile.host = Some("web\u{1b}[2J".into());
        assert!(!OwnerBytes::of(&hostile).to_owner().host.unwrap().contains('\u{1b}'));
        assert_eq!(OwnerBytes(vec![]).to_owner(), Owner::unknown());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = Record::decode(&bytes);
        }

        #[test]
        fn arbitrary_payloads_with_a_good_checksum_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..900)) {
            let mut page = [0; PAGE];
            let mut writer = Writer::new(&mut page);
            writer.put(&payload);
            if let Ok(record) = Record::decode(writer.finish(MAGIC, 1)) {
                let _ = record.grant.map(|grant| grant.owner.to_owner());
            }
        }
    }
}
