//! Invariants of validated requests, from any sender.

use std::sync::OnceLock;

use sigma_plugin::Context;

use super::parameter::Limits;
use super::specification::{Scope, Skipped, Specification};

pub(super) const DOCUMENT: &str = r##"
openapi: 3.1.0
servers: [{ url: /v1 }, { url: "https://api.example/v1/" }, { url: "{base}", variables: { base: { default: beta } } }]
paths:
  /things/{id}:
    parameters:
      - { name: id, in: path, required: true, schema: { type: integer, minimum: 1 } }
      - { name: X-Trace, in: header, schema: { type: string, maxLength: 4 } }
    get:
      parameters:
        - { name: limit, in: query, schema: { $ref: "#/components/schemas/Limit" } }
        - { name: tags, in: query, schema: { type: array, items: { type: string, maxLength: 3 }, maxItems: 2 } }
        - { name: ids, in: query, explode: false, schema: { type: array, items: { type: integer } } }
        - { name: piped, in: query, style: pipeDelimited, explode: false, schema: { type: array, items: { type: boolean } } }
        - { name: spaced, in: query, style: spaceDelimited, explode: false, schema: { type: array, items: { enum: [a, b] } } }
        - name: filter
          in: query
          style: deepObject
          schema:
            type: object
            properties: { age: { type: integer }, kinds: { type: array, items: { type: string } } }
            additionalProperties: false
        - name: point
          in: query
          schema: { type: object, properties: { x: { type: number }, y: { type: number } }, required: [x, y] }
        - { name: where, in: query, content: { application/json: { schema: { type: object, required: [a] } } } }
        - { name: flag, in: query, allowEmptyValue: true, schema: { type: boolean } }
        - { name: X-Ids, in: header, schema: { type: array, items: { type: integer } } }
        - { name: X-Map, in: header, explode: true, schema: { type: object, properties: { a: { type: integer } } } }
        - { name: Content-Type, in: header, required: true, schema: { const: never } }
        - { name: sid, in: cookie, schema: { type: string, pattern: "^[0-9a-f]+$" } }
        - { name: X-Trace, in: header, schema: { type: string, maxLength: 8 } }
      responses:
        "200":
          headers:
            X-Left: { $ref: "#/components/headers/Left" }
            X-Ids: { schema: { type: array, items: { type: integer } } }
            Set-Cookie: { schema: { type: string, pattern: "^a=" } }
            Content-Type: { required: true, schema: { const: never } }
          content:
            application/json: { schema: { $ref: "#/components/schemas/Thing" } }
            text/*: { schema: { type: integer } }
        "204": { description: none, content: { application/json: {} } }
        4XX: { $ref: "#/components/responses/Problem" }
        "418": { content: {} }
        default: { description: anything }
    put:
      requestBody:
        required: true
        content:
          application/json: { schema: { $ref: "#/components/schemas/Thing" } }
          application/x-www-form-urlencoded:
            schema: { $ref: "#/components/schemas/Thing" }
            encoding: { sizes: { style: form, explode: false } }
          multipart/form-data:
            schema:
              type: object
              required: [file]
              properties:
                file: { type: string, format: binary }
                files: { type: array, items: { type: string } }
                thing: { $ref: "#/components/schemas/Thing" }
                count: { type: integer }
            encoding: { file: { contentType: "image/*, text/plain" } }
          text/*: {}
    patch:
      requestBody: { content: { application/*: { schema: { $ref: "#/components/schemas/Thing" } } } }
    delete: {}
  /labels/{a}/{b}:
    get:
      parameters:
        - { name: a, in: path, required: true, style: label, schema: { type: array, items: { type: integer } } }
        - { name: b, in: path, required: true, style: matrix, explode: true, schema: { type: array, items: { type: integer } } }
  /needed:
    get:
      parameters:
        - { name: q, in: query, required: true, schema: { type: string } }
        - { name: H, in: header, required: true, schema: { type: string } }
        - { name: c, in: cookie, required: true, schema: { type: string } }
components:
  headers:
    Left: { required: true, schema: { type: integer, minimum: 0 } }
  responses:
    Problem: { content: { "*/*": { schema: { required: [title], properties: { title: { type: string } } } } } }
  schemas:
    Limit: { type: integer, minimum: 1, maximum: 100 }
    Thing:
      type: object
      required: [name]
      properties:
        id: { type: integer, readOnly: true }
        name: { type: string, pattern: "^[a-z]+$" }
        sizes: { type: array, items: { type: integer } }
        on: { type: boolean }
        pin: { type: string, writeOnly: true }
        inner: { $ref: "#/components/schemas/Thing" }
      unevaluatedProperties: false
"##;

const LIMITS: Limits = Limits { values: 200, steps: 10_000 };

/// A line with the path, one with the query, then lines of `X-Ids`, `Cookie` and `Content-Type`, and the body behind
/// an empty line: nothing panics, and the same request has the same problems.
pub fn oas_validator(input: &[u8]) {
    static ALL: OnceLock<Specification> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        Specification::read(DOCUMENT, Scope::RequestsAndAnswers).expect("the document is valid")
    });
    let mut lines = input.splitn(6, |b| *b == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (path, query, ids, cookie, content_type, body) = (line(), line(), line(), line(), line(), line());
    let mut ctx = Context::default();
    ctx.request.set_path_and_query(&[b"/?", query].concat());
    for (name, value) in [("X-Ids", ids), ("Cookie", cookie), ("Content-Type", content_type)] {
        if !value.is_empty() {
            ctx.request.headers.append(name, value);
        }
    }
    for method in ["GET", "PUT", "PATCH"] {
        let Some(found) = all.find(method.as_bytes(), path) else { continue };
        let problems = || found.parameters(&ctx, Skipped::default(), LIMITS);
        assert_eq!(problems(), problems());
        if let Some(described) = &found.operation.body {
            let content_type = String::from_utf8_lossy(content_type);
            let outcome = || found.body(described, &content_type, body, LIMITS);
            assert_eq!(outcome(), outcome());
        }
        check_responses(all, found.number, &mut ctx, content_type, body);
    }
}

/// The same for responses with this type and body.
fn check_responses(
    all: &Specification,
    operation: usize,
    ctx: &mut Context,
    content_type: &[u8],
    body: &[u8],
) {
    for status in [200, 204, 404, 418, 500] {
        ctx.response.start(status);
        ctx.response.headers.append("Content-Type", content_type);
        ctx.response.headers.append("X-Left", body.split(|b| *b == b'\n').next().unwrap_or_default());
        let looked = all.look(operation, ctx, LIMITS);
        assert_eq!(looked, all.look(operation, ctx, LIMITS));
        if let Some(schema) = looked.schema {
            assert_eq!(all.answer(schema, body, LIMITS), all.answer(schema, body, LIMITS));
        }
    }
}
