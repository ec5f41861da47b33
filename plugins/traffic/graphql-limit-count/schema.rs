//! The types of a GraphQL server: which field returns which, and the defaults of arguments.

use std::collections::HashMap;

use serde::Deserialize;
use sigma_plugin::graphql::Operation;

/// The introspection query: the types of its fields, as far as they may be wrapped (the specification of
/// October 2021, §4).
pub(super) const QUESTION: &str = "query IntrospectionQuery{__schema{queryType{name}mutationType{name}\
    subscriptionType{name}types{name fields(includeDeprecated:true){name type{...T}args{name defaultValue}}}}}\
    fragment T on __Type{name ofType{name ofType{name ofType{name ofType{name ofType{name ofType{name}}}}}}}";

/// Types of a schema.
#[derive(Debug, Default)]
pub(super) struct Schema {
    roots: [Option<Box<str>>; 3],
    types: HashMap<Box<str>, HashMap<Box<str>, Field>>,
}

/// A field of a type.
#[derive(Debug)]
pub(super) struct Field {
    /// The type of its value, without lists around it.
    pub(super) returns: Box<str>,
    /// Arguments that are numbers unless something is said.
    defaults: Vec<(Box<str>, f64)>,
}

impl Field {
    /// The number that an argument is unless something is said.
    pub(super) fn default_of(&self, argument: &str) -> Option<f64> {
        self.defaults.iter().find(|(name, _)| **name == *argument).map(|(_, number)| *number)
    }
}

impl Schema {
    /// Reads a response to [`QUESTION`]; None if it is invalid.
    pub(super) fn read(answer: &[u8]) -> Option<Schema> {
        let IntrospectionResponse { data: Data { schema } } = serde_json::from_slice(answer).ok()?;
        let name = |named: Option<Named>| named.and_then(|named| named.name);
        let field = |field: IntrospectedField| {
            let number = |argument: IntrospectedArgument| {
                let number: f64 = argument.default_value?.trim().parse().ok()?;
                Some((argument.name, number))
            };
            let defaults = field.args.unwrap_or_default().into_iter().filter_map(number).collect();
            Some((field.name, Field { returns: field.of?.innermost()?, defaults }))
        };
        let fields = |told: IntrospectedType| {
            let fields = told.fields.unwrap_or_default().into_iter().filter_map(field).collect();
            Some((told.name?, fields))
        };
        Some(Schema {
            roots: [name(schema.query_type), name(schema.mutation_type), name(schema.subscription_type)],
            types: schema.types.into_iter().filter_map(fields).collect(),
        })
    }

    /// The type that an operation begins with.
    pub(super) fn root(&self, operation: Operation) -> Option<&str> {
        self.roots[operation as usize].as_deref()
    }

    /// Returns the name of a type as it is stored here, if there is one.
    pub(super) fn known(&self, name: &str) -> Option<&str> {
        self.types.get_key_value(name).map(|(name, _)| &**name)
    }

    /// A field of a type.
    pub(super) fn field(&self, of: &str, name: &str) -> Option<&Field> {
        self.types.get(of)?.get(name)
    }
}

#[derive(Deserialize)]
struct IntrospectionResponse {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "__schema")]
    schema: IntrospectedSchema,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IntrospectedSchema {
    query_type: Option<Named>,
    mutation_type: Option<Named>,
    subscription_type: Option<Named>,
    types: Vec<IntrospectedType>,
}

#[derive(Deserialize)]
struct Named {
    name: Option<Box<str>>,
}

#[derive(Deserialize)]
struct IntrospectedType {
    name: Option<Box<str>>,
    fields: Option<Vec<IntrospectedField>>,
}

#[derive(Deserialize)]
struct IntrospectedField {
    name: Box<str>,
    #[serde(rename = "type")]
    of: Option<Wrapped>,
    args: Option<Vec<IntrospectedArgument>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IntrospectedArgument {
    name: Box<str>,
    default_value: Option<Box<str>>,
}

/// A type with the type of its elements.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wrapped {
    name: Option<Box<str>>,
    of_type: Option<Box<Wrapped>>,
}

impl Wrapped {
    fn innermost(self) -> Option<Box<str>> {
        // The parser of JSON limits the depth of values.
        match (self.name, self.of_type) {
            (_, Some(within)) => within.innermost(),
            (name, None) => name,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Users that have friends and posts.
    pub(crate) const ANSWER: &str = r#"{"data":{"__schema":{"queryType":{"name":"Query"},"mutationType":null,"types":[
        {"name":"Query","fields":[
            {"name":"users","type":{"name":null,"ofType":{"name":null,"ofType":{"name":"User","ofType":null}}},
             "args":[{"name":"first","defaultValue":"10"},{"name":"by","defaultValue":"\"name\""}]},
            {"name":"me","type":{"name":"User"},"args":[]}]},
        {"name":"User","fields":[
            {"name":"name","type":{"name":"String"},"args":[]},
            {"name":"friends","type":{"name":"User"},"args":[{"name":"first","defaultValue":null}]},
            {"name":"posts","type":{"name":null,"ofType":{"name":"Post"}},"args":[{"name":"first"},{"name":"weight"}]}]},
        {"name":"Post","fields":[{"name":"title","type":{"name":"String"}}]},
        {"name":"String","fields":null}]}}}"#;

    #[test]
    fn a_schema_is_read() {
        let schema = Schema::read(ANSWER.as_bytes()).unwrap();
        assert_eq!(schema.root(Operation::Query), Some("Query"));
        assert_eq!(schema.root(Operation::Mutation), None);
        let users = schema.field("Query", "users").unwrap();
        assert_eq!(
            (&*users.returns, users.default_of("first"), users.default_of("by")),
            ("User", Some(10.0), None)
        );
        assert_eq!(schema.known("Post"), Some("Post"));
        assert!(schema.known("Nobody").is_none() && schema.field("String", "x").is_none());
        for none in ["", "{}", r#"{"errors":[]}"#, r#"{"data":null}"#, r#"{"data":{"__schema":{}}}"#] {
            assert!(Schema::read(none.as_bytes()).is_none(), "{none}");
        }
        let question = sigma_plugin::graphql::definitions(QUESTION);
        assert_eq!(question.map(|all| all.len()), Ok(2));
    }
}
