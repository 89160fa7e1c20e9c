package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// Sends what its standard input says. The library has no idempotent producer.
func feed(bootstrap, topic string, age time.Duration) {
	transport := &kafka.Transport{MetadataTTL: age}
	var waiting sync.WaitGroup
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond, Transport: transport, Async: true,
		Completion: func(messages []kafka.Message, err error) {
			if err != nil {
				log.Fatal(err)
			}
			waiting.Add(-len(messages))
		},
	}
	client := &kafka.Client{Addr: kafka.TCP(bootstrap), Transport: transport}
	background := context.Background()
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		switch line := input.Text(); line {
		case "flush":
			waiting.Wait()
			fmt.Println("flushed")
		case "partitions":
			answer, err := client.Metadata(background, &kafka.MetadataRequest{Topics: []string{topic}})
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(len(answer.Topics[0].Partitions))
		default:
			key, value, _ := strings.Cut(line, " ")
			waiting.Add(1)
			if err := writer.WriteMessages(background, kafka.Message{Key: []byte(key), Value: []byte(value)}); err != nil {
				log.Fatal(err)
			}
		}
	}
	waiting.Wait()
	if err := writer.Close(); err != nil {
		log.Fatal(err)
	}
}

// Prints what it reads as a member of a group, until its standard input has a line or ends.
func follow(bootstrap, topic, group string, age time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		cancel()
	}()
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, Topic: topic, GroupID: group, StartOffset: kafka.FirstOffset,
		MaxWait: 200 * time.Millisecond, CommitInterval: 200 * time.Millisecond, HeartbeatInterval: 500 * time.Millisecond,
		// Without it the library learns of no partition that is added.
		WatchPartitionChanges: true, PartitionWatchInterval: age,
	})
	for {
		message, err := reader.ReadMessage(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(message.Value))
	}
	if err := reader.Close(); err != nil {
		log.Fatal(err)
	}
}
