//! A pickle as a graph of values. Nothing is executed.
//!
//! In: a stream at the start of a pickle of protocol 0 to 5. Out: its nodes; the stream is just
//! after the pickle.
//! Invariant: every class and every call stays a name. Memory is bounded by a small multiple of the
//! bytes read, and no value is copied. burn's reader does not suffice: it rejects a file with any
//! object around the tensors, and keys that are no text.

// tidy: long file because the operations of a pickle are one machine
use std::collections::HashMap;
use std::io::{BufRead, Read};

/// The place of a node in [`Pickle`].
pub(super) type Id = u32;

/// A value. A container holds the ids of its parts, so a value that is used twice is one node.
#[derive(Debug)]
pub(super) enum Node {
    Bool(bool),
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
    /// `module.name` of a class or function.
    Class(String),
    /// A tuple, list or set.
    Sequence(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// The argument of Python's `persistent_load`.
    Reference(Id),
    Object(Object),
    /// `None`, a float, an integer beyond 64 bits, or a value that only Python understands.
    Opaque,
}

/// The result of a call, and the parts that were added to it later.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) class: Id,
    pub(super) arguments: Id,
    /// The items of a subclass of `dict`.
    pub(super) items: Vec<(Id, Id)>,
    pub(super) state: Option<Id>,
}

/// All nodes of a pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    nodes: Vec<Node>,
    pub(super) root: Id,
}

impl Pickle {
    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the text of a key or name. PyTorch also uses integers as keys.
    pub(super) fn text(&self, id: Id) -> Option<String> {
        match self.node(id) {
            Node::Text(text) => Some(text.clone()),
            Node::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }

    pub(super) fn class(&self, id: Id) -> Option<&str> {
        match self.node(id) {
            Node::Class(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn sequence(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::Sequence(items) => Some(items),
            _ => None,
        }
    }

    pub(super) fn number(&self, id: Id) -> Option<usize> {
        match self.node(id) {
            Node::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(super) fn numbers(&self, id: Id) -> Option<Vec<usize>> {
        self.sequence(id)?
            .iter()
            .map(|&id| self.number(id))
            .collect()
    }
}

/// Reads one pickle.
///
/// # Errors
/// The reason that there is no pickle in the stream.
pub(super) fn read(stream: &mut impl BufRead) -> Result<Pickle, String> {
    let mut machine = Machine {
        stream,
        nodes: vec![Node::Opaque],
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    let root = machine.run()?;
    Ok(Pickle {
        nodes: machine.nodes,
        root,
    })
}

/// The node of all opaque values without parts.
const OPAQUE: Id = 0;

struct Machine<'a, R> {
    stream: &'a mut R,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// The heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<R: BufRead> Machine<'_, R> {
    // tidy: long function because each operation of a pickle has an arm
    /// Executes operations until STOP. Their codes are those of Python's `pickletools`.
    fn run(&mut self) -> Result<Id, String> {
        loop {
            let code = self.number(1)? as u8;
            match code {
                b'.' => return self.pop(),
                // PROTO, FRAME
                0x80 | 0x95 => drop(self.number(number_bytes(code))?),
                // Constants and numbers
                b'N' => self.stack.push(OPAQUE),
                0x88 => self.push(Node::Bool(true))?,
                0x89 => self.push(Node::Bool(false))?,
                b'I' => match self.line()?.as_str() {
                    "00" => self.push(Node::Bool(false))?,
                    "01" => self.push(Node::Bool(true))?,
                    digits => self.push_digits(digits)?,
                },
                b'L' => {
                    let line = self.line()?;
                    self.push_digits(line.trim_end_matches('L'))?;
                }
                b'J' => {
                    let number = self.number(4)? as u32;
                    self.push(Node::Int(number.cast_signed().into()))?;
                }
                b'K' | b'M' => {
                    let number = self.number(number_bytes(code))?;
                    self.push(Node::Int(number as i64))?;
                }
                0x8A | 0x8B => {
                    let len = self.number(number_bytes(code))?;
                    self.push_long(len)?;
                }
                b'F' => {
                    self.line()?;
                    self.stack.push(OPAQUE);
                }
                b'G' => {
                    self.number(8)?;
                    self.stack.push(OPAQUE);
                }
                // Texts and bytes
                b'S' => {
                    let line = self.line()?;
                    self.push(Node::Text(line.trim_matches(['\'', '"']).to_owned()))?;
                }
                b'V' => {
                    let line = self.line()?;
                    self.push(Node::Text(line))?;
                }
                b'U' | b'T' | b'X' | 0x8C | 0x8D => {
                    let len = self.number(number_bytes(code))?;
                    self.push_text(len)?;
                }
                b'C' | b'B' | 0x8E | 0x96 => {
                    let len = self.number(number_bytes(code))?;
                    let bytes = self.bytes(len)?;
                    self.push(Node::Bytes(bytes))?;
                }
                // Containers. A set becomes a sequence.
                b'(' => self.marks.push(self.stack.len()),
                b')' | b']' | 0x8F => self.push(Node::Sequence(Vec::new()))?,
                b'}' => self.push(Node::Dict(Vec::new()))?,
                b't' | b'l' | 0x91 => {
                    let items = self.pop_to_mark()?;
                    self.push(Node::Sequence(items))?;
                }
                len @ 0x85..=0x87 => {
                    let mut items = (0x85..=len)
                        .map(|_| self.pop())
                        .collect::<Result<Vec<_>, _>>()?;
                    items.reverse();
                    self.push(Node::Sequence(items))?;
                }
                b'd' => {
                    let pairs = pairs(&self.pop_to_mark()?)?;
                    self.push(Node::Dict(pairs))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(&[item])?;
                }
                b'e' | 0x90 => {
                    let items = self.pop_to_mark()?;
                    self.append(&items)?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set(&[key, value])?;
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    self.set(&items)?;
                }
                // The stack and the memo.
                b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.pop_to_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                b'g' => {
                    let index = self.line()?.parse().map_err(|_| damaged("memo index"))?;
                    self.recall(index)?;
                }
                b'h' | b'j' => {
                    let index = self.number(number_bytes(code))?;
                    self.recall(index as u32)?;
                }
                b'p' => {
                    let index = self.line()?.parse().map_err(|_| damaged("memo index"))?;
                    self.memorise(index)?;
                }
                b'q' | b'r' => {
                    let index = self.number(number_bytes(code))?;
                    self.memorise(index as u32)?;
                }
                0x94 => self.memorise(self.memo.len() as u32)?,
                // Classes, calls, states
                b'c' => {
                    let module = self.line()?;
                    let name = self.line()?;
                    self.push(Node::Class(format!("{module}.{name}")))?;
                }
                0x93 => {
                    let name = self.pop()?;
                    let module = self.pop()?;
                    let class = match (self.node(module), self.node(name)) {
                        (Node::Text(module), Node::Text(name)) => format!("{module}.{name}"),
                        _ => return Err(damaged("name of a class")),
                    };
                    self.push(Node::Class(class))?;
                }
                b'P' => {
                    let line = self.line()?;
                    let id = self.add(Node::Text(line))?;
                    self.push(Node::Reference(id))?;
                }
                b'Q' => {
                    let id = self.pop()?;
                    self.push(Node::Reference(id))?;
                }
                b'R' | 0x81 => {
                    let arguments = self.pop()?;
                    let class = self.pop()?;
                    self.push_object(class, arguments)?;
                }
                0x92 => {
                    // The arguments by name.
                    self.pop()?;
                    let arguments = self.pop()?;
                    let class = self.pop()?;
                    self.push_object(class, arguments)?;
                }
                b'i' => {
                    let class = format!("{}.{}", self.line()?, self.line()?);
                    let class = self.add(Node::Class(class))?;
                    let arguments = self.pop_to_mark()?;
                    let arguments = self.add(Node::Sequence(arguments))?;
                    self.push_object(class, arguments)?;
                }
                b'o' => {
                    let mut arguments = self.pop_to_mark()?;
                    if arguments.is_empty() {
                        return Err(damaged("object"));
                    }
                    let class = arguments.remove(0);
                    let arguments = self.add(Node::Sequence(arguments))?;
                    self.push_object(class, arguments)?;
                }
                b'b' => {
                    let state = self.pop()?;
                    let object = self.top()?;
                    // The state of any other value, such as an `OrderedDict`, is its attributes,
                    // which hold no tensors.
                    if let Node::Object(object) = &mut self.nodes[object as usize] {
                        object.state = Some(state);
                    }
                }
                // Registered classes, and buffers outside the pickle. The second operation on
                // buffers only makes one read-only.
                0x82..=0x84 => {
                    self.number(number_bytes(code))?;
                    self.stack.push(OPAQUE);
                }
                0x97 => self.stack.push(OPAQUE),
                0x98 => {}
                code => return Err(format!("0x{code:02x} is not an operation of a pickle")),
            }
        }
    }

    fn add(&mut self, node: Node) -> Result<Id, String> {
        let id =
            Id::try_from(self.nodes.len()).map_err(|_| "more than 4 billion values".to_owned())?;
        self.nodes.push(node);
        Ok(id)
    }

    fn push(&mut self, node: Node) -> Result<(), String> {
        let id = self.add(node)?;
        self.stack.push(id);
        Ok(())
    }

    fn push_object(&mut self, class: Id, arguments: Id) -> Result<(), String> {
        self.push(Node::Object(Object {
            class,
            arguments,
            items: Vec::new(),
            state: None,
        }))
    }

    fn push_digits(&mut self, digits: &str) -> Result<(), String> {
        self.push(digits.parse().map_or(Node::Opaque, Node::Int))
    }

    /// Pushes an integer of `len` bytes in two's complement.
    fn push_long(&mut self, len: u64) -> Result<(), String> {
        let bytes = self.bytes(len)?;
        let fill = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) {
            0xFF
        } else {
            0
        };
        let mut number = [fill; 8];
        if bytes.len() > number.len() {
            self.stack.push(OPAQUE);
            return Ok(());
        }
        number[..bytes.len()].copy_from_slice(&bytes);
        self.push(Node::Int(i64::from_le_bytes(number)))
    }

    /// Pushes a text of `len` bytes. Python 2 writes any bytes like this.
    fn push_text(&mut self, len: u64) -> Result<(), String> {
        let node = match String::from_utf8(self.bytes(len)?) {
            Ok(text) => Node::Text(text),
            Err(error) => Node::Bytes(error.into_bytes()),
        };
        self.push(node)
    }

    fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    /// Returns the value on top of the stack, above the last mark.
    fn top(&self) -> Result<Id, String> {
        let mark = self.marks.last().copied().unwrap_or(0);
        let above = self.stack.get(mark..).and_then(<[Id]>::last);
        above.copied().ok_or_else(|| damaged("stack"))
    }

    fn pop(&mut self) -> Result<Id, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or_else(|| damaged("stack"))?;
        Ok(self.stack.split_off(mark))
    }

    /// Appends to a list. The items of another value, such as a `deque`, are ignored.
    fn append(&mut self, items: &[Id]) -> Result<(), String> {
        let list = self.top()?;
        if let Node::Sequence(list) = &mut self.nodes[list as usize] {
            list.extend(items);
        }
        Ok(())
    }

    fn set(&mut self, items: &[Id]) -> Result<(), String> {
        let pairs = pairs(items)?;
        let dict = self.top()?;
        match &mut self.nodes[dict as usize] {
            Node::Dict(items) | Node::Object(Object { items, .. }) => items.extend(pairs),
            _ => {}
        }
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), String> {
        let id = *self.memo.get(&index).ok_or_else(|| damaged("memo index"))?;
        self.stack.push(id);
        Ok(())
    }

    fn memorise(&mut self, index: u32) -> Result<(), String> {
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    /// Reads an unsigned number of up to 8 bytes, the low byte first.
    fn number(&mut self, num_bytes: usize) -> Result<u64, String> {
        let mut bytes = [0; 8];
        self.stream
            .read_exact(&mut bytes[..num_bytes])
            .map_err(|error| format!("the pickle cannot be read to its end: {error}"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn bytes(&mut self, len: u64) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let read = self
            .stream
            .by_ref()
            .take(len)
            .read_to_end(&mut bytes)
            .map_err(|error| error.to_string())?;
        if (read as u64) < len {
            return Err(format!("the pickle ends within a value of {len} bytes"));
        }
        Ok(bytes)
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = Vec::new();
        self.stream
            .read_until(b'\n', &mut line)
            .map_err(|error| error.to_string())?;
        if line.pop() != Some(b'\n') {
            return Err("the pickle ends within a line".to_owned());
        }
        String::from_utf8(line).map_err(|_| damaged("line"))
    }
}

/// Returns the number of bytes of the number, length or index after an operation.
fn number_bytes(code: u8) -> usize {
    match code {
        0x80 | b'K' | 0x8A | b'U' | 0x8C | b'C' | b'h' | b'q' | 0x82 => 1,
        b'M' | 0x83 => 2,
        0x8B | b'T' | b'X' | b'B' | b'j' | b'r' | 0x84 => 4,
        _ => 8,
    }
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>, String> {
    match items.as_chunks::<2>() {
        (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
        _ => Err(damaged("dictionary")),
    }
}

fn damaged(what: &str) -> String {
    format!("the pickle is damaged ({what})")
}
