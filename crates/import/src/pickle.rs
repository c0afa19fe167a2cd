//! Reads the plain part of Python's pickle format, protocols 2 to 5: none, booleans, numbers, text, bytes, lists, tuples, dictionaries and
//! references back. Nothing is ever called or imported: an opcode that would do so is an error.
//!
//! Values are kept in one table and named by their index, so that a value which a pickle refers to many times is stored once, and hostile
//! nesting costs no stack. There are at most as many values as bytes.

/// Index of a value in [`Pickle::values`].
pub type Ref = u32;

/// A Python value.
#[derive(Clone, Debug, PartialEq)]
pub enum PickleValue {
    /// `None`, and integers that do not fit: nothing here needs them.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(Box<str>),
    /// Bytes, whose content nothing here needs.
    Bytes,
    /// A list or a tuple.
    Sequence(Vec<Ref>),
    /// A dictionary, in order of insertion.
    Dict(Vec<(Ref, Ref)>),
}

/// A pickle that was read.
#[derive(Debug)]
pub struct Pickle {
    values: Vec<PickleValue>,
    root: Ref,
}

/// Why bytes are not a plain pickle.
#[derive(Debug, PartialEq)]
pub struct PickleError {
    /// Where, in bytes from the beginning.
    pub byte: usize,
    /// What is wrong.
    pub what: String,
}

impl Pickle {
    /// Reads one pickle from the beginning of `bytes`.
    pub fn read(bytes: &[u8]) -> Result<Self, PickleError> {
        let mut reader = PickleReader {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        };
        loop {
            let byte = reader.at;
            match reader.step() {
                Ok(None) => {}
                Ok(Some(root)) => return Ok(Self { values: reader.values, root }),
                Err(what) => return Err(PickleError { byte, what }),
            }
        }
    }

    /// The outermost value.
    pub fn root(&self) -> Ref {
        self.root
    }

    /// A value.
    pub fn get(&self, value: Ref) -> &PickleValue {
        &self.values[value as usize]
    }

    /// The value of a text key in a dictionary. `None` if this is not a dictionary, has no such key, or has too many keys to be a record: a
    /// hostile pickle may refer to one large dictionary many times.
    pub fn key(&self, dict: Ref, key: &str) -> Option<Ref> {
        let PickleValue::Dict(pairs) = self.get(dict) else { return None };
        if pairs.len() > 256 {
            return None;
        }
        // Later pairs win, as in Python.
        pairs
            .iter()
            .rev()
            .find(|(k, _)| matches!(self.get(*k), PickleValue::Text(t) if &**t == key))
            .map(|&(_, v)| v)
    }

    /// The items of a list or tuple; empty for anything else.
    pub fn items(&self, list: Ref) -> &[Ref] {
        match self.get(list) {
            PickleValue::Sequence(items) => items,
            _ => &[],
        }
    }

    /// The integer under a key that is not negative.
    pub fn int(&self, dict: Ref, key: &str) -> Option<u64> {
        match self.get(self.key(dict, key)?) {
            PickleValue::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The text under a key.
    pub fn text(&self, dict: Ref, key: &str) -> Option<&str> {
        match self.get(self.key(dict, key)?) {
            PickleValue::Text(text) => Some(text),
            _ => None,
        }
    }
}

struct PickleReader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<PickleValue>,
    stack: Vec<Ref>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: Vec<Option<Ref>>,
}

type Parsed<T = ()> = Result<T, String>;

impl<'a> PickleReader<'a> {
    /// Obeys one opcode; returns the outermost value at the last.
    fn step(&mut self) -> Parsed<Option<Ref>> {
        let opcode = self.take(1)?[0];
        match opcode {
            0x80 => match self.take(1)?[0] {
                2..=5 => {}
                other => return Err(format!("protocol {other} is none of 2 to 5")),
            },
            // A frame only announces how many bytes belong together.
            0x95 => drop(self.take(8)?),
            b'.' => return self.pop().map(Some),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = *self.stack.last().ok_or("it copies from an empty stack")?;
                self.stack.push(top);
            }
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(PickleValue::None),
            0x88 => self.push(PickleValue::Bool(true)),
            0x89 => self.push(PickleValue::Bool(false)),
            b'K' => {
                let number = self.take(1)?[0];
                self.push(PickleValue::Int(number.into()));
            }
            b'M' => {
                let number = self.number(2)?;
                self.push(PickleValue::Int(number as i64));
            }
            b'J' => {
                let number = self.number(4)? as u32 as i32;
                self.push(PickleValue::Int(number.into()));
            }
            0x8a => {
                let len = self.number(1)?;
                self.long(len)?;
            }
            0x8b => {
                let len = self.number(4)?;
                self.long(len)?;
            }
            b'G' => {
                let bits: [u8; 8] = self.take(8)?.try_into().map_err(|_| "a float is cut off")?;
                self.push(PickleValue::Float(f64::from_be_bytes(bits)));
            }
            0x8c => self.text(1)?,
            b'X' => self.text(4)?,
            0x8d => self.text(8)?,
            b'C' => self.skip_bytes(1)?,
            b'B' => self.skip_bytes(4)?,
            0x8e | 0x96 => self.skip_bytes(8)?,
            b']' | b')' => self.push(PickleValue::Sequence(Vec::new())),
            b'l' | b't' => {
                let items = self.pop_mark()?;
                self.push(PickleValue::Sequence(items));
            }
            0x85..=0x87 => {
                let len = usize::from(opcode - 0x84);
                let from = self.floor(len)?;
                let items = self.stack.split_off(from);
                self.push(PickleValue::Sequence(items));
            }
            b'}' => self.push(PickleValue::Dict(Vec::new())),
            b'd' => {
                let items = self.pop_mark()?;
                self.push(PickleValue::Dict(Vec::new()));
                self.set_items(items)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b's' => {
                let from = self.floor(2)?;
                let items = self.stack.split_off(from);
                self.set_items(items)?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(items)?;
            }
            b'q' => {
                let index = self.number(1)?;
                self.remember(index)?;
            }
            b'r' => {
                let index = self.number(4)?;
                self.remember(index)?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            b'h' => {
                let index = self.number(1)?;
                self.recall(index)?;
            }
            b'j' => {
                let index = self.number(4)?;
                self.recall(index)?;
            }
            b'c' | b'R' | b'b' | b'i' | b'o' | 0x81 | 0x92 | 0x93 => {
                return Err(
                    "it would import or call something, which is not done here; only plain data is read"
                        .to_owned(),
                );
            }
            other => return Err(format!("opcode {other:#04x} is none of those of plain data")),
        }
        Ok(None)
    }

    fn take(&mut self, len: usize) -> Parsed<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or("the pickle is cut off")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A little-endian number of up to eight bytes.
    fn number(&mut self, len: usize) -> Parsed<u64> {
        Ok(self.take(len)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn length(&mut self, width: usize) -> Parsed<usize> {
        usize::try_from(self.number(width)?).map_err(|_| "the pickle is cut off".to_owned())
    }

    /// A two's complement integer; those beyond 64 bits become none.
    fn long(&mut self, len: u64) -> Parsed {
        let bytes = self.take(usize::try_from(len).map_err(|_| "the pickle is cut off")?)?;
        let negative = bytes.last().is_some_and(|&byte| byte & 0x80 != 0);
        let sign = if negative { 0xff } else { 0 };
        let value = if bytes.iter().skip(8).all(|&byte| byte == sign) {
            let mut wide = [sign; 8];
            wide.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
            let number = i64::from_le_bytes(wide);
            // A ninth byte of sign may disagree with the eighth.
            if bytes.len() > 8 && (number < 0) != negative {
                PickleValue::None
            } else {
                PickleValue::Int(number)
            }
        } else {
            PickleValue::None
        };
        self.push(value);
        Ok(())
    }

    fn text(&mut self, width: usize) -> Parsed {
        let len = self.length(width)?;
        let text = String::from_utf8_lossy(self.take(len)?);
        self.push(PickleValue::Text(text.into()));
        Ok(())
    }

    fn skip_bytes(&mut self, width: usize) -> Parsed {
        let len = self.length(width)?;
        self.take(len)?;
        self.push(PickleValue::Bytes);
        Ok(())
    }

    fn push(&mut self, value: PickleValue) {
        // There are fewer values than bytes, and no more than 2^31 bytes are read.
        self.stack.push(self.values.len() as Ref);
        self.values.push(value);
    }

    /// Where the top `len` entries begin, none of them below the last mark.
    fn floor(&self, len: usize) -> Parsed<usize> {
        let from =
            self.stack.len().checked_sub(len).filter(|&from| from >= self.marks.last().copied().unwrap_or(0));
        from.ok_or_else(|| "it takes more from the stack than is there".to_owned())
    }

    fn pop(&mut self) -> Parsed<Ref> {
        self.floor(1)?;
        self.stack.pop().ok_or_else(|| "it takes from an empty stack".to_owned())
    }

    fn pop_mark(&mut self) -> Parsed<Vec<Ref>> {
        let from = self.marks.pop().ok_or("it goes back to a mark that was never set")?;
        Ok(self.stack.split_off(from))
    }

    fn append(&mut self, items: Vec<Ref>) -> Parsed {
        let list = *self.stack.last().ok_or("it appends to nothing")?;
        match &mut self.values[list as usize] {
            PickleValue::Sequence(list) => list.extend(items),
            _ => return Err("it appends to something that is no list".to_owned()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Ref>) -> Parsed {
        let dict = *self.stack.last().ok_or("it sets items of nothing")?;
        if !items.len().is_multiple_of(2) {
            return Err("a key has no value".to_owned());
        }
        match &mut self.values[dict as usize] {
            PickleValue::Dict(pairs) => pairs.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1]))),
            _ => return Err("it sets items of something that is no dictionary".to_owned()),
        }
        Ok(())
    }

    fn remember(&mut self, index: u64) -> Parsed {
        let top = *self.stack.last().ok_or("it remembers nothing")?;
        // Writers number what they remember from zero; anything far beyond would only waste memory.
        let index = usize::try_from(index).ok().filter(|&index| index <= self.at);
        let index = index.ok_or("it remembers something under a number that is too large")?;
        if self.memo.len() <= index {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(top);
        Ok(())
    }

    fn recall(&mut self, index: u64) -> Parsed {
        let known = usize::try_from(index).ok().and_then(|index| self.memo.get(index).copied().flatten());
        self.stack.push(known.ok_or("it recalls something that it never remembered")?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width() {
        for (bytes, value) in [
            (&b"\x80\x02K\xff."[..], PickleValue::Int(255)),
            (b"\x80\x02M\x01\x02.", PickleValue::Int(513)),
            (b"\x80\x02J\xff\xff\xff\xff.", PickleValue::Int(-1)),
            (b"\x80\x02\x8a\x00.", PickleValue::Int(0)),
            (b"\x80\x02\x8a\x05\x00\x00\x00\x00\x01.", PickleValue::Int(1 << 32)),
            (b"\x80\x02\x8a\x01\x80.", PickleValue::Int(-128)),
            (b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.", PickleValue::None),
            (b"\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00.", PickleValue::Float(1.5)),
            (b"\x80\x02N.", PickleValue::None),
            (b"\x80\x02\x88.", PickleValue::Bool(true)),
        ] {
            let pickle = Pickle::read(bytes).unwrap();
            assert_eq!(pickle.get(pickle.root()), &value, "{bytes:?}");
        }
    }

    #[test]
    fn what_is_remembered_is_shared() {
        // l = [1]; [l, l], as protocol 4 writes it.
        let pickle = Pickle::read(b"\x80\x04]\x94(]\x94K\x01ah\x01e.").unwrap();
        let items = pickle.items(pickle.root());
        assert_eq!(items.len(), 2);
        assert_eq!(items[0], items[1]);
        assert_eq!(pickle.get(pickle.items(items[0])[0]), &PickleValue::Int(1));
    }

    #[test]
    fn nothing_is_called() {
        // cos.system: what a hostile pickle begins with.
        let error = Pickle::read(b"\x80\x02cos\nsystem\n.").unwrap_err();
        assert_eq!(error.byte, 2);
        assert!(error.what.contains("import or call"), "{}", error.what);
    }

    #[test]
    fn cut_off_at_every_byte() {
        let whole = b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94K\x01\x8c\x01b\x94]\x94(K\x02K\x03eu.";
        assert!(Pickle::read(whole).is_ok());
        for end in 0..whole.len() {
            assert!(Pickle::read(&whole[..end]).is_err(), "{end}");
        }
    }
}
