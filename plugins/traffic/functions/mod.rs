//! Requests are answered by functions of serverless platforms instead of a node.

mod aws_lambda;
mod azure_functions;
mod openfunction;
mod openwhisk;
mod platform;
#[cfg(test)]
mod tests;

pub(crate) use aws_lambda::AWS_LAMBDA;
pub(crate) use azure_functions::AZURE_FUNCTIONS;
pub(crate) use openfunction::OPENFUNCTION;
pub(crate) use openwhisk::OPENWHISK;
