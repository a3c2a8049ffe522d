"""Chat over gRPC from Python: `python deploy/examples/grpc/client.py HOST:PORT MODEL "A question"`.

Needs grpcio and the stubs of this repository (`pointsman`), or ones made from `proto/pointsman/v1/inference.proto`."""

import sys

import grpc

from pointsman.v1.inference_pb2 import ChatMessage, ChatRequest, ContentPart, ListModelsRequest
from pointsman.v1.inference_pb2_grpc import InferenceStub


def main(address: str, model: str, question: str) -> int:
    with grpc.insecure_channel(address) as channel:
        stub = InferenceStub(channel)
        names = [each.id for each in stub.ListModels(ListModelsRequest(), timeout=10).models]
        print(f"models: {', '.join(names)}")
        message = ChatMessage(role="user", parts=[ContentPart(text=question)])
        asked = ChatRequest(model=model, messages=[message], sampling={"max_tokens": 24, "temperature": 0})
        # The deadline and a cancel reach the engine; metadata are what headers are over HTTP.
        answer = stub.ChatStream(asked, timeout=60, metadata=[("x-session-id", "example")])
        try:
            for event in answer:
                print(event.text, end="", flush=True)
                if event.HasField("usage"):
                    print(f"\n{event.usage.prompt_tokens} tokens in, {event.usage.output_tokens} out")
        except grpc.RpcError as error:
            print(f"\n{error.code().name}: {error.details()}", file=sys.stderr)
            return 1
        told = dict(answer.initial_metadata())
        print(f"answered by {told['x-pointsman-replica']}: {told['x-pointsman-reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
