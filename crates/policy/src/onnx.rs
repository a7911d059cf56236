//! Writes ONNX models: just the protobuf wire format and the few messages a decoder needs.
//!
//! A writer this small needs no protobuf library and no generated code. Field numbers follow `onnx.proto`
//! (<https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>). Left out: reading, subgraphs, and types nobody
//! uses.

/// Element types, as `TensorProto.DataType` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32 = 1,
    I32 = 6,
    I64 = 7,
    F16 = 10,
    BF16 = 16,
}

/// The version of the file format that operator sets 23 and later come with.
const IR_VERSION: u64 = 11;
/// `TensorProto.DataLocation.EXTERNAL`.
const EXTERNAL: u64 = 1;

/// The value of a node's attribute.
#[derive(Clone, Copy)]
pub(crate) enum Attribute {
    Int(i64),
    Float(f32),
}

/// A protobuf message being written.
#[derive(Clone, Debug, Default)]
struct Message(Vec<u8>);

/// Wire types.
const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | VARINT);
        self.varint(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | FIXED_32);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }
}

/// A `GraphProto` being written, in the order of the calls.
#[derive(Debug, Default)]
pub(crate) struct Graph(Message);

impl Graph {
    /// A node named after its first output. An empty input or output name means that it is absent.
    pub(crate) fn node(
        &mut self,
        domain: &str,
        operator: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[(&str, Attribute)],
    ) {
        let mut node = Message::default();
        for input in inputs {
            node.text(1, input);
        }
        for output in outputs {
            node.text(2, output);
        }
        node.text(3, &format!("{}/{operator}", outputs.first().unwrap_or(&"")));
        node.text(4, operator);
        for (name, value) in attributes {
            let mut attribute = Message::default();
            attribute.text(1, name);
            match value {
                Attribute::Float(float) => {
                    attribute.float(2, *float);
                    attribute.number(20, 1);
                }
                Attribute::Int(int) => {
                    attribute.number(3, *int as u64);
                    attribute.number(20, 2);
                }
            }
            node.message(5, &attribute);
        }
        node.text(7, domain);
        self.0.message(1, &node);
    }

    fn tensor(name: &str, element: Element, shape: &[usize]) -> Message {
        let mut tensor = Message::default();
        for &extent in shape {
            tensor.number(1, extent as u64);
        }
        tensor.number(2, element as u64);
        tensor.text(8, name);
        tensor
    }

    /// An initializer whose bytes lie in another file.
    pub(crate) fn external(
        &mut self,
        name: &str,
        element: Element,
        shape: &[usize],
        file_name: &str,
        offset: u64,
        length: usize,
    ) {
        let mut tensor = Graph::tensor(name, element, shape);
        let place = [
            ("location", file_name.to_owned()),
            ("offset", offset.to_string()),
            ("length", length.to_string()),
        ];
        for (key, value) in place {
            let mut entry = Message::default();
            entry.text(1, key);
            entry.text(2, &value);
            tensor.message(13, &entry);
        }
        tensor.number(14, EXTERNAL);
        self.0.message(5, &tensor);
    }

    /// An initializer of f32, bf16 or f16 inside the model.
    pub(crate) fn numbers(
        &mut self,
        name: &str,
        element: Element,
        shape: &[usize],
        values: impl Iterator<Item = f32>,
    ) {
        let mut tensor = Graph::tensor(name, element, shape);
        let bytes: Vec<u8> = match element {
            Element::BF16 => values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect(),
            Element::F16 => values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        };
        tensor.bytes(9, &bytes);
        self.0.message(5, &tensor);
    }

    /// A vector of 64-bit integers inside the model, such as the shape that `Reshape` takes.
    pub(crate) fn integers(&mut self, name: &str, values: &[i64]) {
        let mut tensor = Graph::tensor(name, Element::I64, &[values.len()]);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensor.bytes(9, &bytes);
        self.0.message(5, &tensor);
    }

    /// `ValueInfoProto`; a dimension that is no number is symbolic.
    fn value(name: &str, element: Element, dimensions: &[&str]) -> Message {
        let mut shape = Message::default();
        for dimension in dimensions {
            let mut message = Message::default();
            match dimension.parse() {
                Ok(extent) => message.number(1, extent),
                Err(_) => message.text(2, dimension),
            }
            shape.message(1, &message);
        }
        let mut tensor_type = Message::default();
        tensor_type.number(1, element as u64);
        tensor_type.message(2, &shape);
        let mut value_type = Message::default();
        value_type.message(1, &tensor_type);
        let mut value = Message::default();
        value.text(1, name);
        value.message(2, &value_type);
        value
    }

    pub(crate) fn input(&mut self, name: &str, element: Element, dimensions: &[&str]) {
        self.0.message(11, &Graph::value(name, element, dimensions));
    }

    pub(crate) fn output(&mut self, name: &str, element: Element, dimensions: &[&str]) {
        self.0.message(12, &Graph::value(name, element, dimensions));
    }

    /// The `ModelProto`: this graph and the operator sets it uses.
    pub(crate) fn into_model(mut self, name: &str, operator_sets: &[(&str, u64)]) -> Vec<u8> {
        self.0.text(2, name);
        let mut model = Message::default();
        model.number(1, IR_VERSION);
        model.text(2, "troupe");
        for (domain, version) in operator_sets {
            let mut set = Message::default();
            set.text(1, domain);
            set.number(2, *version);
            model.message(8, &set);
        }
        model.message(7, &self.0);
        model.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the encoding guide (<https://protobuf.dev/programming-guides/encoding/>).
    #[test]
    fn wire_format() {
        let mut message = Message::default();
        message.number(1, 150);
        message.text(2, "testing");
        message.float(5, 1.0);
        assert_eq!(message.0, b"\x08\x96\x01\x12\x07testing\x2d\x00\x00\x80\x3f");
        let mut negative = Message::default();
        negative.number(3, -1_i64 as u64);
        assert_eq!(negative.0, [0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    }
}
