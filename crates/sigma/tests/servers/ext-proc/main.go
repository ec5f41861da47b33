// A processor of Envoy's ext_proc with the types of go-control-plane: fields are set, bodies come back in capitals.
package main

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ext_proc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
)

type server struct {
	ext_proc.UnimplementedExternalProcessorServer
}

func set(key, value string) *ext_proc.HeaderMutation {
	header := &core.HeaderValue{Key: key, RawValue: []byte(value)}
	return &ext_proc.HeaderMutation{SetHeaders: []*core.HeaderValueOption{{Header: header}}}
}

func common(key, value string) *ext_proc.CommonResponse {
	return &ext_proc.CommonResponse{HeaderMutation: set(key, value)}
}

func capitals(body []byte) *ext_proc.BodyResponse {
	upper := append(bytes.ToUpper(body), '!')
	mutation := &ext_proc.BodyMutation{Mutation: &ext_proc.BodyMutation_Body{Body: upper}}
	response := &ext_proc.CommonResponse{
		HeaderMutation: set("content-length", strconv.Itoa(len(upper))),
		BodyMutation:   mutation,
	}
	return &ext_proc.BodyResponse{Response: response}
}

func refused(headers *ext_proc.HttpHeaders) bool {
	for _, header := range headers.GetHeaders().GetHeaders() {
		if header.GetKey() == "x-refuse" {
			return true
		}
	}
	return false
}

func answer(request *ext_proc.ProcessingRequest) *ext_proc.ProcessingResponse {
	response := &ext_proc.ProcessingResponse{}
	switch part := request.GetRequest().(type) {
	case *ext_proc.ProcessingRequest_RequestHeaders:
		if refused(part.RequestHeaders) {
			immediate := &ext_proc.ImmediateResponse{
				Status: &typev3.HttpStatus{Code: typev3.StatusCode_Forbidden},
				Body:   []byte("refused"),
			}
			response.Response = &ext_proc.ProcessingResponse_ImmediateResponse{ImmediateResponse: immediate}
			break
		}
		headers := &ext_proc.HeadersResponse{Response: common("x-new", "1")}
		response.Response = &ext_proc.ProcessingResponse_RequestHeaders{RequestHeaders: headers}
	case *ext_proc.ProcessingRequest_ResponseHeaders:
		headers := &ext_proc.HeadersResponse{Response: common("x-back", "2")}
		response.Response = &ext_proc.ProcessingResponse_ResponseHeaders{ResponseHeaders: headers}
	case *ext_proc.ProcessingRequest_RequestBody:
		body := capitals(part.RequestBody.GetBody())
		response.Response = &ext_proc.ProcessingResponse_RequestBody{RequestBody: body}
	case *ext_proc.ProcessingRequest_ResponseBody:
		body := capitals(part.ResponseBody.GetBody())
		response.Response = &ext_proc.ProcessingResponse_ResponseBody{ResponseBody: body}
	}
	return response
}

func (server) Process(stream ext_proc.ExternalProcessor_ProcessServer) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(answer(request)); err != nil {
			return err
		}
	}
}

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	processor := grpc.NewServer()
	ext_proc.RegisterExternalProcessorServer(processor, server{})
	log.Fatal(processor.Serve(listener))
}
