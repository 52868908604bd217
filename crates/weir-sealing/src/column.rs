//! The columns whose values are sealed. To seal another column, add a [`Column`] to [`COLUMNS`], and use it where the
//! codecs of the rows read and write the value.

/// What a column holds, which decides whether new values are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Sealed as soon as there is a key.
    Secrets,
    /// Events and answers: sealed if the operator wants it.
    Payloads,
}

/// How a database stores the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A sealed value is text: `sealed:`, the id of its key, `:`, and base64.
    Text,
    /// A sealed value is bytes, the first of which no clear value has.
    Bytes,
}

/// A column whose values are sealed.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    /// `table.column`. It is authenticated with each value, so that no value can be moved to another column.
    pub name: &'static str,
    pub table: &'static str,
    pub column: &'static str,
    /// The primary key: 16 bytes, and for attempts a number. It is authenticated with each value as [`row`] says.
    pub id: &'static str,
    pub number: Option<&'static str>,
    pub form: Form,
    pub holds: Holds,
}

macro_rules! columns {
    ($($const:ident = $table:literal . $column:literal by $id:literal $($number:literal)?, $form:ident, $holds:ident;)+) => {
        $(pub const $const: Column = Column {
            name: concat!($table, ".", $column),
            table: $table,
            column: $column,
            id: $id,
            number: columns!(@optional $($number)?),
            form: Form::$form,
            holds: Holds::$holds,
        };)+

        /// Every column with sealed values.
        pub const COLUMNS: &[Column] = &[$($const),+];
    };
    (@optional $number:literal) => { Some($number) };
    (@optional) => { None };
}

columns! {
    HEADERS = "destinations"."headers" by "id", Text, Secrets;
    SIGNING = "destinations"."signing" by "id", Text, Secrets;
    EGRESS_SECRETS = "destinations"."egress_secrets" by "id", Text, Secrets;
    BODY = "events"."body" by "id", Bytes, Payloads;
    RESPONSE_BODY = "attempts"."response_body" by "delivery_id" "number", Text, Payloads;
}

/// A row of a column with a number.
pub fn row(id: &[u8; 16], number: u32) -> [u8; 20] {
    let mut row = [0; 20];
    row[..16].copy_from_slice(id);
    row[16..].copy_from_slice(&number.to_be_bytes());
    row
}
