//! Encodes an OpenAPI v2 document as protobuf: the message `openapi.v2.Document`, with the fields that the document uses.

use serde_json::Value;

/// The media type that kubectl requests for the protobuf form.
pub(crate) const ASKED_FOR: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The media type of the response, without the `@` that a header cannot contain.
pub(crate) const MEDIA: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Encodes a document.
pub(crate) fn document(document: &Value) -> Vec<u8> {
    let mut message = Message::default();
    message.text(1, document.get("swagger"));
    message.nested(2, document.get("info"), |info, message| {
        message.text(1, info.get("title"));
        message.text(2, info.get("version"));
    });
    message.nested(8, document.get("paths"), |paths, message| message.named(2, Some(paths), path_item));
    message.nested(9, document.get("definitions"), |all, message| message.named(1, Some(all), schema));
    message.0
}

/// An encoded message under construction.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

/// A function that writes a value as the fields of a message.
type Write = fn(&Value, &mut Message);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            // The low seven bits, and the bit that says that more bytes follow.
            self.0.push((value & 0x7F) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, value: Option<&Value>) {
        if let Some(text) = value.and_then(Value::as_str) {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u64, value: Option<&Value>) {
        value.and_then(Value::as_array).into_iter().flatten().for_each(|one| self.text(field, Some(one)));
    }

    fn flag(&mut self, field: u64, value: Option<&Value>) {
        if value.and_then(Value::as_bool) == Some(true) {
            self.varint(field << 3);
            self.varint(1);
        }
    }

    fn count(&mut self, field: u64, value: Option<&Value>) {
        if let Some(number) = value.and_then(Value::as_u64) {
            self.varint(field << 3);
            self.varint(number);
        }
    }

    fn number(&mut self, field: u64, value: Option<&Value>) {
        if let Some(number) = value.and_then(Value::as_f64) {
            self.varint(field << 3 | 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn nested(&mut self, field: u64, value: Option<&Value>, write: Write) {
        if let Some(value) = value {
            let mut inner = Self::default();
            write(value, &mut inner);
            self.bytes(field, &inner.0);
        }
    }

    /// Writes the entries of a map, each as a message of name and value.
    fn named(&mut self, field: u64, value: Option<&Value>, write: Write) {
        for (name, value) in value.and_then(Value::as_object).into_iter().flatten() {
            let mut entry = Self::default();
            entry.bytes(1, name.as_bytes());
            entry.nested(2, Some(value), write);
            self.bytes(field, &entry.0);
        }
    }

    /// Writes the fields that begin with `x-`.
    fn extensions(&mut self, field: u64, value: &Value) {
        let all = value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-"));
        for (name, value) in all {
            let mut entry = Self::default();
            entry.bytes(1, name.as_bytes());
            entry.nested(2, Some(value), any);
            self.bytes(field, &entry.0);
        }
    }
}

/// Writes any value as YAML text. JSON is valid YAML.
fn any(value: &Value, message: &mut Message) {
    message.bytes(2, value.to_string().as_bytes());
}

fn path_item(item: &Value, message: &mut Message) {
    for (verb, field) in [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("patch", 8)] {
        message.nested(field, item.get(verb), operation);
    }
}

fn operation(operation: &Value, message: &mut Message) {
    for one in operation.get("parameters").and_then(Value::as_array).into_iter().flatten() {
        message.nested(8, Some(one), |one, item| {
            item.nested(1, Some(one), |one, parameter| {
                parameter.nested(2, Some(one), |one, other| other.nested(3, Some(one), query_parameter));
            });
        });
    }
    message.extensions(13, operation);
}

fn query_parameter(parameter: &Value, message: &mut Message) {
    for (field, name) in [(2, "in"), (4, "name"), (6, "type")] {
        message.text(field, parameter.get(name));
    }
    message.flag(20, parameter.get("uniqueItems"));
}

fn schema(schema: &Value, message: &mut Message) {
    let field = |name: &str| schema.get(name);
    for (number, name) in [(1, "$ref"), (2, "format"), (3, "title"), (4, "description"), (13, "pattern")] {
        message.text(number, field(name));
    }
    message.nested(5, field("default"), any);
    for (number, name) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        message.number(number, field(name));
    }
    for (number, name) in [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems")] {
        message.flag(number, field(name));
    }
    let counts = [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ];
    for (number, name) in counts {
        message.count(number, field(name));
    }
    message.texts(19, field("required"));
    field("enum").and_then(Value::as_array).into_iter().flatten().for_each(|one| message.nested(20, Some(one), any));
    message.nested(21, field("additionalProperties"), |one, item| match one {
        Value::Bool(_) => item.flag(2, Some(one)),
        one => item.nested(1, Some(one), self::schema),
    });
    message.nested(22, field("type"), |one, item| item.text(1, Some(one)));
    message.nested(23, field("items"), |one, item| item.nested(1, Some(one), self::schema));
    message.nested(25, field("properties"), |all, item| item.named(1, Some(all), self::schema));
    message.extensions(31, schema);
}
