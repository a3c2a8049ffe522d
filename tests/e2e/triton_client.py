"""Triton's own client against the gRPC port, in a process of its own: its stubs and ours describe the same protocol,
and one process may hold only one of them. Prints the whole answer, then the streamed one, as JSON."""

import json
import queue
import sys

import numpy as np
import tritonclient.grpc as triton


def main(address: str, model: str, prompt: str) -> None:
    client = triton.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([prompt.encode()], dtype=np.object_))
    options = {"max_tokens": 8, "temperature": 0}
    whole = client.infer(model, [text], parameters=options).as_numpy("text_output")
    heard: queue.Queue[object] = queue.Queue()
    client.start_stream(lambda result, error: heard.put(error or result))
    client.async_stream_infer(model, [text], parameters=options, enable_empty_final_response=True)
    pieces = []
    while True:
        result = heard.get(timeout=60)
        assert isinstance(result, triton.InferResult), result
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
        pieces.append(result.as_numpy("text_output")[0].decode())
    client.stop_stream()
    print(json.dumps([whole[0].decode(), "".join(pieces)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
